#include "gguf/stub_header.hpp"

namespace seeddelta {

namespace {

constexpr std::string_view kOwn = "seeddelta.";

template <class T>
void put(std::string &out, T value) {
    out.append(reinterpret_cast<const char *>(&value), sizeof(value));
}

void put_text(std::string &out, std::string_view text) {
    put<uint64_t>(out, text.size());
    out.append(text);
}

} // namespace

std::string stub_header(const Header &model, std::vector<StubTensor> &tensors, const ChangedValues &changed) {
    const size_t alignment = model.alignment();
    const auto aligned = [&](size_t offset) { return (offset + alignment - 1) / alignment * alignment; };
    std::string values;
    uint64_t count = 0;
    for (const std::string &key : model.keys()) {
        if (key.starts_with(kOwn) || changed.contains(key)) {
            continue;
        }
        const Value &value = *model.value(key);
        put_text(values, key);
        put(values, static_cast<uint32_t>(value.type));
        values.append(reinterpret_cast<const char *>(value.bytes.data()), value.bytes.size());
        ++count;
    }
    for (const auto &[key, value] : changed) {
        if (!value.empty()) {
            put_text(values, key);
            values += value;
            ++count;
        }
    }
    std::string out = "GGUF";
    put<uint32_t>(out, 3);
    put<uint64_t>(out, tensors.size());
    put<uint64_t>(out, count);
    out += values;
    size_t offset = 0;
    for (StubTensor &tensor : tensors) {
        put_text(out, tensor.name);
        put(out, static_cast<uint32_t>(tensor.ne.size()));
        for (const int64_t size : tensor.ne) {
            put(out, size);
        }
        put(out, tensor.type);
        put<uint64_t>(out, offset);
        tensor.offset = offset;
        offset = aligned(offset + tensor.bytes);
    }
    out.resize(aligned(out.size()), '\0');
    for (StubTensor &tensor : tensors) {
        tensor.offset += out.size();
    }
    return out;
}

} // namespace seeddelta
