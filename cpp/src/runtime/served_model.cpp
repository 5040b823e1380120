#include "runtime/served_model.hpp"

#include <algorithm>
#include <cstdio>
#include <system_error>

#include "ggml_host/add_weights.hpp"
#include "gguf/error.hpp"
#include "gguf/ggml_types.hpp"
#include "runtime/payload.hpp"
#include "runtime/say.hpp"

namespace seeddelta {

namespace {

constexpr const char *kTheFallback = "; give the model that the SeedΔ file was made from as fallback";

std::string short_number(double value) {
    std::array<char, 32> text{};
    static_cast<void>(std::snprintf(text.data(), text.size(), "%.4g", value));
    return text.data();
}

std::vector<int64_t> shape_of(const TensorDescription &d) {
    return d.experts == 0 ? std::vector<int64_t>{d.n_in, d.n_out} : std::vector<int64_t>{d.n_in, d.n_out, d.experts};
}

} // namespace

WatchedModel::WatchedModel(const std::string &path) {
    header_ = Header::read(path, [&](const MappedFile &file) {
        try {
            guards_.emplace_back(file.path(),
                                 std::make_unique<FileGuard>(file.fd(), file.data().data(), file.data().size()));
        } catch (const std::system_error &error) {
            throw ModelFileError(file.path() + ": " + error.what() + "; load it again");
        }
    });
}

std::string WatchedModel::changed() const {
    for (const auto &[path, guard] : guards_) {
        if (!guard->intact()) {
            return path;
        }
    }
    return {};
}

// Whether contexts get attention of ours. Throws ModelFileError where they must and cannot.
static bool takes_attention(const Options &options, const LlamaLibrary &library) {
    if (options.attention == AttentionMode::llama) {
        return false;
    }
    try {
        static_cast<void>(library.attention());
        return true;
    } catch (const ModelFileError &error) {
        if (options.attention == AttentionMode::exact) {
            throw;
        }
        if (options.verbose) {
            say({error.what(), "; llama.cpp computes all of it"});
        }
        return false;
    }
}

ServedModel::ServedModel(std::unique_ptr<WatchedModel> file, const Options &options, const LlamaLibrary &library)
    : options_(options), library_(library), file_(std::move(file)), own_attention_(takes_attention(options, library)) {
    const Header &header = file_->header();
    if (!options.fallback.empty()) {
        fallback_ = std::make_unique<WatchedModel>(options.fallback);
    }
    const std::vector<TensorDescription> all = read_descriptions(header);
    std::unordered_set<std::string_view> stored;
    std::unordered_set<std::string_view> names;
    Names tensors;
    std::vector<WeightArrays> arrays;
    bool statecells = false;
    for (const TensorDescription &d : all) {
        if (!names.insert(d.name).second || header.tensor(d.name) != nullptr) {
            header.fail("tensor '" + d.name + "' is there twice; build the file again");
        }
        tensors.push_back(d.name);
        arrays.push_back(payload_of(header, d, stored));
        statecells |= d.base == BaseKind::none && d.residual == ResidualScheme::codebook_resid;
    }
    if (options.statecells && !statecells) {
        header.fail("has no StateCells weights; make some with `seeddelta build --statecells`, or leave "
                    "statecells out");
    }
    for (const TensorInfo &tensor : header.tensors()) {
        if (!stored.contains(tensor.name)) {
            if (is_payload_name(tensor.name)) {
                header.fail("payload tensor '" + tensor.name + "' has no description; build the file again");
            }
            tensors.push_back(tensor.name);
            keep(tensor);
        }
    }
    for (size_t i = 0; i < all.size(); ++i) {
        const std::string reason = dense_reason(all[i]);
        if (reason.empty()) {
            add(all[i], arrays[i]);
        } else if (fallback_ == nullptr) {
            header.fail("tensor '" + all[i].name + "' " + reason + " and must be computed densely; give the dense " +
                        "model as fallback (fallback=model.gguf in SEEDDELTA_SET)");
        } else {
            keep(dense_copy(all[i]));
            ++dense_;
        }
    }
    register_weights(tensors);
}

// A tensor of one dimension and another type ends the process: ggml's additions and products of vectors abort.
void ServedModel::keep(const TensorInfo &tensor) {
    const uint32_t type = tensor.type;
    const bool computed = type == static_cast<uint32_t>(kTypeF32) || (type >= 24 && type <= 27); // I8 to I64
    if (tensor.ne.size() == 1 && !computed) {
        throw ModelFileError(tensor.file->path() + ": the tensor '" + tensor.name + "' has one dimension and is " +
                             ggml_type(type)->name +
                             ", which llama.cpp does not compute with; the file is corrupt, build it again");
    }
    stub_tensors_.push_back(
        {.name = tensor.name, .ne = tensor.ne, .type = type, .bytes = tensor.bytes, .source = &tensor});
}

void ServedModel::add(const TensorDescription &d, const WeightArrays &arrays) {
    try {
        weights_.emplace_back(d.name, arrays);
    } catch (const std::invalid_argument &error) {
        file_->header().fail(std::string(error.what()) + "; the file is corrupt or of a newer release, build it again");
    }
    const uint32_t type = library_.placeholder_type(d.n_in);
    const GgmlType &of = *ggml_type(type);
    const int64_t bytes = d.n_in / of.block * of.bytes * d.n_out * d.matrices();
    stub_tensors_.push_back({.name = d.name, .ne = shape_of(d), .type = type, .bytes = static_cast<size_t>(bytes)});
    served_.push_back(d);
}

// The weights that are served, in file order, and what chooses the inputs of those that are read by inputs.
void ServedModel::register_weights(const Names &tensors) {
    const Header &header = file_->header();
    const ModelNames model{header.path(), header.text("general.architecture").value_or(""), tensors};
    std::vector<NamedWeight> named;
    for (size_t i = 0; i < served_.size(); ++i) {
        named.push_back({served_[i].name, &weights_[i]});
    }
    try {
        add_weights(registry_, options_.skipping, model, named);
    } catch (const std::invalid_argument &error) {
        throw ModelFileError(error.what());
    }
    for (const TensorDescription &d : served_) {
        if (fallback_ != nullptr) {
            set_fallback(d);
        }
    }
    totals.weights.resize(served_.size());
}

const TensorInfo &ServedModel::dense_copy(const TensorDescription &d) const {
    const Header &model = fallback_->header();
    const TensorInfo *info = model.tensor(d.name);
    if (info == nullptr) {
        model.fail("tensor '" + d.name + "' is not there" + kTheFallback);
    }
    if (info->ne != shape_of(d)) {
        model.fail("tensor '" + d.name + "' has another shape" + kTheFallback);
    }
    return *info;
}

void ServedModel::set_fallback(const TensorDescription &d) {
    const TensorInfo &info = dense_copy(d);
    const GgmlType &type = *ggml_type(info.type);
    const GgmlAbi &abi = library_.abi();
    const auto number = static_cast<int32_t>(info.type);
    const bool known =
        abi.block_size(number) == type.block && static_cast<int64_t>(abi.type_size(number)) == type.bytes;
    if (!known || (number != kTypeF32 && abi.to_float_of(number) == nullptr)) {
        fallback_->header().fail("tensor '" + d.name + "': the type " + type.name +
                                 " cannot be a fallback; convert the fallback to F16");
    }
    RegisteredWeight &weight = *registry_.find(d.name);
    weight.dense =
        dense_operator(weight.op->shape(), {.data = info.data(),
                                            .row_bytes = d.n_in / type.block * type.bytes,
                                            .widen = number == kTypeF32 ? nullptr : abi.to_float_of(number)});
}

std::string ServedModel::dense_reason(const TensorDescription &d) const {
    if (d.is_unsafe) {
        return "is marked unsafe by its build (relative error " + short_number(d.error) + ")";
    }
    if (d.residual == ResidualScheme::proc_sparse && !options_.proc_sparse) {
        return "is proc-sparse, which is switched off,";
    }
    if (options_.gap.has_value() && d.error > *options_.gap) {
        return "has the relative error " + short_number(d.error) + ", above the gap " + short_number(*options_.gap) +
               ",";
    }
    const bool listed = std::any_of(options_.dense.begin(), options_.dense.end(),
                                    [&](const std::string &pattern) { return fits_pattern(pattern, d.name); });
    return listed ? "is on the list of dense tensors" : "";
}

uint64_t ServedModel::file_bytes() const {
    uint64_t bytes = 0;
    for (const auto &file : file_->header().files()) {
        bytes += file->data().size();
    }
    return bytes;
}

std::string ServedModel::changed() const {
    const std::string own = file_->changed();
    return own.empty() && fallback_ != nullptr ? fallback_->changed() : own;
}

std::shared_ptr<StubFile> ServedModel::stub() {
    if (stubs_.empty() || stubs_.back()->sealed()) {
        stubs_.push_back(std::make_shared<StubFile>(file_->header(), stub_tensors_));
    }
    return stubs_.back();
}

bool ServedModel::owns(const Mapping &mapping) const {
    return mapping.inode != 0 &&
           std::any_of(stubs_.begin(), stubs_.end(), [&](const auto &stub) { return stub->owns(mapping); });
}

bool ServedModel::prune(const std::vector<Mapping> &mappings) {
    const auto unmapped = [&](const std::shared_ptr<StubFile> &stub) {
        return std::none_of(mappings.begin(), mappings.end(), [&](const Mapping &m) { return stub->owns(m); });
    };
    std::erase_if(stubs_, [&](const auto &stub) { return stub->sealed() && stub.use_count() == 1 && unmapped(stub); });
    return !std::all_of(stubs_.begin(), stubs_.end(), unmapped);
}

} // namespace seeddelta
