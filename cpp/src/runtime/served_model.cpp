#include "runtime/served_model.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <numeric>
#include <system_error>

#include "ggml_host/hook_error.hpp"
#include "runtime/dense_matrices.hpp"

namespace seeddelta {

namespace {

constexpr const char *kNoStateCells = "has no StateCells weights; make some with `seeddelta build --statecells`, or "
                                      "leave statecells out";
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
            return path + ": was changed or truncated while the model was in use; load it again";
        }
    }
    return {};
}

ServedModel::ServedModel(std::unique_ptr<WatchedModel> file, const Options &options, const LoadedGgml &ggml)
    : options_(options), ggml_(ggml), file_(std::move(file)) {
    if (options.columns) {
        serve_columns();
    } else {
        serve_file();
    }
}

void ServedModel::serve_file() {
    const Header &header = file_->header();
    if (!options_.fallback.empty()) {
        fallback_ = std::make_unique<WatchedModel>(options_.fallback);
    }
    const std::vector<TensorDescription> all = read_descriptions(header);
    Names tensors;
    std::vector<Payload> payloads = read_payload(all, tensors);
    for (size_t i = 0; i < all.size(); ++i) {
        const std::string reason = dense_reason(all[i]);
        if (reason.empty()) {
            add(all[i], std::move(payloads[i]));
        } else if (fallback_ == nullptr) {
            header.fail("tensor '" + all[i].name + "' " + reason + " and must be computed densely; " + kGiveFallback,
                        Fault::original);
        } else {
            keep(dense_copy(all[i]));
            dense_.push_back(all[i].name);
        }
    }
    std::vector<NamedWeight> named;
    for (size_t i = 0; i < served_.size(); ++i) {
        named.push_back({served_[i].name, &weights_[i]});
    }
    register_weights(named, tensors);
    for (const TensorDescription &d : served_) {
        if (fallback_ != nullptr) {
            set_fallback(fallback_->header(), dense_copy(d));
        }
    }
}

// What is computed falls back to what the file has.
void ServedModel::serve_columns() {
    const Header &header = file_->header();
    if (is_seeddelta(header)) {
        header.fail("--columns stores an ordinary GGUF model by columns; a SeedΔ file has its layout", Fault::settings);
    }
    if (options_.statecells) {
        header.fail(kNoStateCells);
    }
    const std::vector<const TensorInfo *> chosen = column_targets(header, options_.column_targets);
    const bool signs = options_.skipping.state_pack_mlp && options_.skipping.state_pack_mlp->aggressive;
    std::vector<NamedWeight> named;
    Names tensors;
    for (const TensorInfo &tensor : header.tensors()) {
        tensors.push_back(tensor.name);
        if (std::find(chosen.begin(), chosen.end(), &tensor) == chosen.end()) {
            keep(tensor);
            continue;
        }
        hold_place(tensor.name, tensor.ne);
        columns_.push_back(columns_of(header, tensor, ggml_.abi(), signs));
        named.push_back({tensor.name, &columns_.back().weight()});
    }
    register_weights(named, tensors);
    for (const TensorInfo *info : chosen) {
        set_fallback(header, *info);
    }
}

// What each tensor is stored as; `tensors` are the names of all of the model. What is no payload is kept.
std::vector<Payload> ServedModel::read_payload(const std::vector<TensorDescription> &all, Names &tensors) {
    const Header &header = file_->header();
    std::unordered_set<std::string_view> stored;
    std::unordered_set<std::string_view> names;
    std::vector<Payload> payloads;
    bool statecells = false;
    for (const TensorDescription &d : all) {
        if (!names.insert(d.name).second || header.tensor(d.name) != nullptr) {
            header.fail("tensor '" + d.name + "' is there twice; build the file again");
        }
        tensors.push_back(d.name);
        payloads.push_back(payload_of(header, d));
        for (const TensorInfo *part : payloads.back().stored) {
            stored.insert(part->name);
        }
        statecells |= d.is_statecells();
    }
    if (options_.statecells && !statecells) {
        header.fail(kNoStateCells);
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
    return payloads;
}

void ServedModel::keep(const TensorInfo &tensor) {
    stub_tensors_.push_back(
        {.name = tensor.name, .ne = tensor.ne, .type = tensor.type, .bytes = tensor.bytes, .source = &tensor});
}

void ServedModel::hold_place(const std::string &name, const std::vector<int64_t> &ne) {
    const PlaceholderType &type = ggml_.abi().placeholder(ne[0]);
    const int64_t elements = std::accumulate(ne.begin(), ne.end(), int64_t{1}, std::multiplies<>());
    stub_tensors_.push_back({.name = name,
                             .ne = ne,
                             .type = static_cast<uint32_t>(type.number),
                             .bytes = static_cast<size_t>(elements / type.block * type.bytes)});
}

void ServedModel::add(const TensorDescription &d, Payload payload) {
    try {
        weights_.emplace_back(d.name, payload.arrays);
    } catch (const std::invalid_argument &error) {
        file_->header().fail(std::string(error.what()) + "; the file is corrupt or of a newer release, build it again");
    }
    hold_place(d.name, shape_of(d));
    payload_.insert(payload_.end(), payload.stored.begin(), payload.stored.end());
    served_.push_back(d);
}

// In file order, with what chooses the inputs of those that are read by inputs.
void ServedModel::register_weights(const std::vector<NamedWeight> &weights, const Names &tensors) {
    const Header &header = file_->header();
    const ModelNames model{header.path(), header.text("general.architecture").value_or(""), tensors};
    try {
        gates_ = add_weights(registry_, options_.skipping, model, weights);
    } catch (const std::invalid_argument &error) {
        throw ModelFileError(error.what(), Fault::settings);
    }
    totals.weights.resize(weights.size());
}

const TensorInfo &ServedModel::dense_copy(const TensorDescription &d) const {
    const Header &model = fallback_->header();
    const TensorInfo *info = model.tensor(d.name);
    if (info == nullptr) {
        model.fail("tensor '" + d.name + "' is not there" + kTheFallback, Fault::original);
    }
    if (info->ne != shape_of(d)) {
        model.fail("tensor '" + d.name + "' has another shape" + kTheFallback, Fault::original);
    }
    return *info;
}

void ServedModel::set_fallback(const Header &original, const TensorInfo &info) {
    RegisteredWeight &weight = *registry_.find(info.name);
    weight.dense = dense_operator(weight.op->shape(), rows_of(original, info, ggml_.abi()));
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

std::vector<std::pair<uintptr_t, size_t>> ServedModel::payload() const {
    std::vector<std::pair<uintptr_t, size_t>> found;
    for (const TensorInfo *part : payload_) {
        found.emplace_back(reinterpret_cast<uintptr_t>(part->data()), part->bytes);
    }
    return found;
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
