#include "gguf/header.hpp"

#include <algorithm>
#include <bit>
#include <numeric>

#include "gguf/cursor.hpp"
#include "gguf/ggml_types.hpp"

namespace seeddelta {

namespace {

constexpr size_t kMostDims = 4;   // GGML_MAX_DIMS
constexpr size_t kMostName = 127; // bytes: llama.cpp takes 63, files of measurements have endings behind such names
constexpr int64_t kMostElements = int64_t{1} << 48; // far beyond any model, far below overflow of the products

Value read_value(Cursor &cursor, const std::string &key, std::span<const uint8_t> data) {
    const std::string what = "the value of " + key;
    const auto type = cursor.number<uint32_t>(what);
    if (type >= kValueTypes) {
        cursor.fail(what + " has the unknown type " + std::to_string(type));
    }
    const Value value{static_cast<ValueType>(type), {}};
    const size_t begin = cursor.at();
    if (value.type == ValueType::text) {
        cursor.text(what);
    } else if (value.type == ValueType::array) {
        const auto item = cursor.number<uint32_t>(what);
        const auto count = cursor.number<uint64_t>(what);
        const auto item_type = static_cast<ValueType>(item);
        if (item >= kValueTypes || item_type == ValueType::array) {
            cursor.fail(what + " is an array of unknown type " + std::to_string(item));
        }
        cursor.need(count, what); // products below stay in 64 bits
        if (item_type == ValueType::text) {
            for (uint64_t i = 0; i < count; ++i) {
                cursor.text(what);
            }
        } else {
            cursor.skip(count * size_of(item_type), what);
        }
    } else {
        cursor.skip(size_of(value.type), what);
    }
    return {value.type, data.subspan(begin, cursor.at() - begin)};
}

bool printable(std::string_view text) {
    return std::all_of(text.begin(), text.end(),
                       [](char c) { return static_cast<unsigned char>(c) >= ' ' && c != 127; });
}

} // namespace

size_t size_of(ValueType type) {
    static constexpr size_t sizes[kValueTypes] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    return sizes[static_cast<uint32_t>(type)];
}

const TensorInfo *Header::tensor(std::string_view name) const {
    const auto found = tensor_at_.find(std::string(name));
    return found == tensor_at_.end() ? nullptr : &tensors_[found->second];
}

const Value *Header::value(std::string_view key) const {
    const auto found = values_.find(std::string(key));
    return found == values_.end() ? nullptr : &found->second;
}

void Header::fail(const std::string &what, Fault fault) const {
    throw ModelFileError(path() + ": " + what, fault);
}

double read_number(Cursor &cursor, ValueType type, std::string_view key) {
    switch (type) {
    case ValueType::i8:
        return cursor.number<int8_t>(key);
    case ValueType::u16:
        return cursor.number<uint16_t>(key);
    case ValueType::i16:
        return cursor.number<int16_t>(key);
    case ValueType::u32:
        return cursor.number<uint32_t>(key);
    case ValueType::i32:
        return cursor.number<int32_t>(key);
    case ValueType::u64:
        return static_cast<double>(cursor.number<uint64_t>(key));
    case ValueType::i64:
        return static_cast<double>(cursor.number<int64_t>(key));
    case ValueType::f32:
        return cursor.number<float>(key);
    case ValueType::f64:
        return cursor.number<double>(key);
    default:
        return cursor.number<uint8_t>(key);
    }
}

std::optional<int64_t> Header::whole(const std::string &key) const {
    const Value *found = value(key);
    if (found == nullptr) {
        return std::nullopt;
    }
    Cursor cursor(path(), found->bytes);
    switch (found->type) {
    case ValueType::u8:
    case ValueType::i8:
    case ValueType::u16:
    case ValueType::i16:
    case ValueType::u32:
    case ValueType::i32:
        return static_cast<int64_t>(read_number(cursor, found->type, key));
    default:
        fail("the key " + key + " is no int; the file is corrupt, make it again");
    }
}

std::optional<bool> Header::flag(const std::string &key) const {
    const Value *found = value(key);
    if (found == nullptr) {
        return std::nullopt;
    }
    if (found->type != ValueType::flag) {
        fail("the key " + key + " is no bool; the file is corrupt, make it again");
    }
    return found->bytes[0] != 0;
}

std::optional<std::string> Header::text(const std::string &key) const {
    const Value *found = value(key);
    if (found == nullptr) {
        return std::nullopt;
    }
    if (found->type != ValueType::text) {
        fail("the key " + key + " is no str; the file is corrupt, make it again");
    }
    return std::string(Cursor(path(), found->bytes).text(key));
}

void Header::forget(std::string_view prefix) {
    std::erase_if(keys_, [&](const std::string &key) { return key.starts_with(prefix); });
    std::erase_if(values_, [&](const auto &entry) { return entry.first.starts_with(prefix); });
}

void Header::read_values(Cursor &cursor, uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) {
        const std::string key(cursor.text("a key"));
        if (values_.contains(key)) {
            cursor.fail("the key '" + key + "' occurs twice");
        }
        values_.emplace(key, read_value(cursor, key, files_.front()->data()));
        keys_.push_back(key);
    }
    const Value *alignment = value("general.alignment");
    if (alignment != nullptr) {
        alignment_ = alignment->type == ValueType::u32 ? static_cast<size_t>(*whole("general.alignment")) : 0;
        if (!std::has_single_bit(alignment_)) {
            cursor.fail("general.alignment is not a power of two in a u32");
        }
    }
}

void Header::read_tensors(Cursor &cursor, uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) {
        TensorInfo tensor;
        tensor.name = cursor.text("a tensor name");
        if (tensor.name.empty() || tensor.name.size() > kMostName || !printable(tensor.name)) {
            cursor.fail("a tensor name is not 1 to 127 bytes of printable text");
        }
        const std::string what = "the description of tensor '" + tensor.name + "'";
        const auto dims = cursor.number<uint32_t>(what);
        if (dims < 1 || dims > kMostDims) {
            cursor.fail("tensor '" + tensor.name + "' has " + std::to_string(dims) + " dimensions");
        }
        for (uint32_t d = 0; d < dims; ++d) {
            const auto size = cursor.number<uint64_t>(what);
            tensor.ne.push_back(static_cast<int64_t>(std::min<uint64_t>(size, kMostElements + 1)));
        }
        tensor.type = cursor.number<uint32_t>(what);
        tensor.offset = cursor.number<uint64_t>(what); // from where the data begins
        tensor.file = files_.front().get();
        if (!tensor_at_.emplace(tensor.name, tensors_.size()).second) {
            fail("tensor '" + tensor.name + "' occurs twice; make the file again");
        }
        tensors_.push_back(std::move(tensor));
    }
    data_offset_ = (cursor.at() + alignment_ - 1) / alignment_ * alignment_;
    for (TensorInfo &tensor : tensors_) {
        place(tensor);
    }
}

void Header::place(TensorInfo &tensor) const {
    const auto wrong = [&](const std::string &what) {
        fail("tensor '" + tensor.name + "' " + what + "; the file is corrupt or truncated, make it again");
    };
    const GgmlType *type = ggml_type(tensor.type);
    if (type == nullptr) {
        fail("tensor '" + tensor.name + "' has the unknown type " + std::to_string(tensor.type) +
             "; the file is corrupt, or it is of a newer llama.cpp: install a newer seeddelta");
    }
    int64_t elements = 1;
    for (const int64_t size : tensor.ne) {
        if (size < 1 || size > kMostElements / elements) {
            wrong("has an impossible shape");
        }
        elements *= size;
    }
    if (tensor.ne[0] % type->block != 0) {
        wrong("has " + std::to_string(tensor.ne[0]) + " columns, not a multiple of the block of " + type->name);
    }
    tensor.bytes = static_cast<size_t>(elements / type->block * type->bytes);
    if (tensor.offset % alignment_ != 0) {
        wrong("starts at " + std::to_string(tensor.offset) + ", which is not a multiple of " +
              std::to_string(alignment_));
    }
    const size_t size = tensor.file->data().size();
    if (data_offset_ > size || tensor.offset > size - data_offset_ ||
        tensor.bytes > size - data_offset_ - tensor.offset) {
        wrong("ends behind the end of the file, which has " + std::to_string(size) + " bytes");
    }
    tensor.offset += data_offset_;
}

void Header::check_overlap() const {
    std::vector<const TensorInfo *> order;
    for (const TensorInfo &tensor : tensors_) {
        order.push_back(&tensor);
    }
    std::sort(order.begin(), order.end(), [](const auto *a, const auto *b) { return a->offset < b->offset; });
    for (size_t i = 1; i < order.size(); ++i) {
        if (order[i]->offset < order[i - 1]->offset + order[i - 1]->bytes) {
            fail("tensors '" + order[i - 1]->name + "' and '" + order[i]->name + "' overlap; make the file again");
        }
    }
}

void Header::parse() {
    const std::span<const uint8_t> data = files_.front()->data();
    if (std::memcmp(data.data(), "GGUF", 4) != 0) {
        fail("not a GGUF file; give a .gguf model");
    }
    Cursor cursor(path(), data);
    cursor.skip(4, "the magic");
    const auto version = cursor.number<uint32_t>("the version");
    if ((version & 0xFFFFU) == 0) {
        fail("a big-endian GGUF; convert it with gguf-convert-endian");
    }
    if (version != 2 && version != 3) {
        fail("GGUF version " + std::to_string(version) + " is not known (2 and 3 are); convert the model again");
    }
    const auto tensors = cursor.number<uint64_t>("the counts");
    const auto values = cursor.number<uint64_t>("the counts");
    constexpr uint64_t kLeastTensor = 28, kLeastValue = 13; // bytes that each takes
    if (tensors > data.size() / kLeastTensor || values > data.size() / kLeastValue) {
        cursor.fail("the file ends inside the header (impossible counts)");
    }
    read_values(cursor, values);
    read_tensors(cursor, tensors);
    check_overlap();
}

Header Header::read_one(const std::string &path, const Mapped &mapped) {
    Header header;
    header.files_.push_back(std::make_unique<MappedFile>(path));
    if (mapped) {
        mapped(*header.files_.front());
    }
    header.parse();
    return header;
}

Header Header::read(const std::string &path, const Mapped &mapped) {
    Header header = read_one(path, mapped);
    if (header.whole("split.count").value_or(1) > 1) {
        header.join(mapped);
    }
    return header;
}

} // namespace seeddelta
