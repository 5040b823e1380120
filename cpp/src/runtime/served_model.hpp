// A SeedΔ model made ready: the weights that are computed from the file, and the file that llama.cpp loads in its
// place.
#pragma once
#include <array>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gating/counts.hpp"
#include "ggml_host/file_guard.hpp"
#include "ggml_host/weight_registry.hpp"
#include "gguf/descriptions.hpp"
#include "runtime/llama_library.hpp"
#include "runtime/options.hpp"
#include "runtime/own_attention.hpp"
#include "runtime/stub_file.hpp"
#include "seeddelta/make_weight.hpp"

namespace seeddelta {

// A header whose files are watched from before they are read. The guards go before the mappings.
class WatchedModel {
public:
    // Throws ModelFileError.
    explicit WatchedModel(const std::string &path);

    const Header &header() const { return *header_; }
    // The first file that is not what was opened; empty when all are.
    std::string changed() const;

private:
    std::optional<Header> header_;
    std::vector<std::pair<std::string, std::unique_ptr<FileGuard>>> guards_;
};

// What one weight did in all contexts that are gone, in the order of WeightCounters.
inline constexpr int kCounters = 13;
using Counts = std::array<uint64_t, kCounters>;

// What contexts did.
struct Totals {
    std::vector<Counts> weights;   // in the order of the registry
    std::vector<GateCounts> gates; // in the order of the registry
    std::vector<Metric> proof;     // of the last context whose gates were on trial
    uint64_t nodes_seen = 0;
    AttentionCounts attention{};
};

class ServedModel {
public:
    // Throws ModelFileError.
    ServedModel(std::unique_ptr<WatchedModel> file, const Options &options, const LlamaLibrary &library);

    const std::string &path() const { return file_->header().path(); }
    const Options &options() const { return options_; }
    const LlamaLibrary &library() const { return library_; }
    WeightRegistry &registry() { return registry_; }
    const std::vector<TensorDescription> &served() const { return served_; } // in the order of the registry
    size_t dense_weights() const { return dense_; }
    uint64_t file_bytes() const;
    bool own_attention() const { return own_attention_; } // in its contexts
    // Empty, or the file that has changed since, which makes everything computed void.
    std::string changed() const;

    // The file that llama.cpp is to load now. One that was loaded before is not used again.
    std::shared_ptr<StubFile> stub();
    // Whether a mapping is of one of its stub files.
    bool owns(const Mapping &mapping) const;
    // Drops the stub files that are mapped nowhere; false when none is left mapped.
    bool prune(const std::vector<Mapping> &mappings);

    Totals totals; // of contexts that are gone

private:
    void add(const TensorDescription &description, const WeightArrays &arrays);
    void register_weights(const Names &tensors);
    void set_fallback(const TensorDescription &description);
    const TensorInfo &dense_copy(const TensorDescription &description) const;
    std::string dense_reason(const TensorDescription &description) const;
    void keep(const TensorInfo &tensor);

    const Options options_;
    const LlamaLibrary &library_;
    std::unique_ptr<WatchedModel> file_, fallback_;
    std::vector<TensorDescription> served_;
    size_t dense_ = 0;
    bool own_attention_ = false;
    std::deque<CheckedWeight> weights_;
    WeightRegistry registry_;
    std::vector<StubTensor> stub_tensors_;
    std::vector<std::shared_ptr<StubFile>> stubs_;
};

} // namespace seeddelta
