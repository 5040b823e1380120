// A model made ready: the weights that are computed here, and the file that llama.cpp loads in its place.
#pragma once
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "ggml_host/add_weights.hpp"
#include "ggml_host/file_guard.hpp"
#include "ggml_host/loaded_ggml.hpp"
#include "runtime/options.hpp"
#include "runtime/payload.hpp"
#include "runtime/stub_file.hpp"
#include "runtime/totals.hpp"

namespace seeddelta {

// A header whose files are watched from before they are read. The guards go before the mappings.
class WatchedModel {
public:
    // Throws ModelFileError.
    explicit WatchedModel(const std::string &path);

    const Header &header() const { return *header_; }
    // Empty, or what is told when a file is not what was opened.
    std::string changed() const;

private:
    std::optional<Header> header_;
    std::vector<std::pair<std::string, std::unique_ptr<FileGuard>>> guards_;
};

class ServedModel {
public:
    // A SeedΔ file; or an ordinary model, where options have columns: of these the matrices by columns are computed.
    // Throws ModelFileError, std::bad_alloc.
    ServedModel(std::unique_ptr<WatchedModel> file, const Options &options, const LoadedGgml &ggml);

    const std::string &path() const { return file_->header().path(); }
    const Options &options() const { return options_; }
    WeightRegistry &registry() { return registry_; }
    // Of a SeedΔ file, in the order of the registry.
    const std::vector<TensorDescription> &served() const { return served_; }
    const Names &dense() const { return dense_; }              // from the start
    const std::vector<Names> &gates() const { return gates_; } // the matrices that share each
    uint64_t file_bytes() const;
    const LoadedGgml &ggml() const { return ggml_; }
    // Empty, or what is told when a file has changed since, which makes everything computed void.
    std::string changed() const;
    // Addresses and bytes of what the weights are computed from.
    std::vector<std::pair<uintptr_t, size_t>> payload() const;

    // The file that llama.cpp is to load now. One that was loaded before is not used again.
    std::shared_ptr<StubFile> stub();
    // Whether a mapping is of one of its stub files.
    bool owns(const Mapping &mapping) const;
    // Drops the stub files that are mapped nowhere; false when none is left mapped.
    bool prune(const std::vector<Mapping> &mappings);

    Totals totals; // of contexts that are gone

private:
    void serve_file();
    void serve_columns();
    std::vector<Payload> read_payload(const std::vector<TensorDescription> &all, Names &tensors);
    void add(const TensorDescription &description, Payload payload);
    void register_weights(const std::vector<NamedWeight> &weights, const Names &tensors);
    void set_fallback(const Header &original, const TensorInfo &info);
    const TensorInfo &dense_copy(const TensorDescription &description) const;
    std::string dense_reason(const TensorDescription &description) const;
    void keep(const TensorInfo &tensor);
    void hold_place(const std::string &name, const std::vector<int64_t> &ne);

    const Options options_;
    const LoadedGgml &ggml_;
    std::unique_ptr<WatchedModel> file_, fallback_;
    std::vector<TensorDescription> served_;
    Names dense_;
    std::vector<Names> gates_;
    std::deque<CheckedWeight> weights_;
    std::deque<DenseColumns> columns_; // of an ordinary model
    std::vector<const TensorInfo *> payload_;
    WeightRegistry registry_;
    std::vector<StubTensor> stub_tensors_;
    std::vector<std::shared_ptr<StubFile>> stubs_;
};

} // namespace seeddelta
