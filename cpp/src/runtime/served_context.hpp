// One scheduler of llama.cpp, and so one context, that computes with the weights of a model of ours.
#pragma once
#include <memory>
#include <mutex>
#include <optional>

#include "gating/trial.hpp"
#include "ggml_host/graph_hook.hpp"
#include "runtime/llama_library.hpp"
#include "runtime/own_attention.hpp"
#include "runtime/served_model.hpp"

namespace seeddelta {

// ggml_status
inline constexpr int kStatusFailed = -1;
inline constexpr int kStatusNoMemory = -2;

using ComputeGraph = int (*)(void *scheduler, void *graph);

class ServedContext {
public:
    explicit ServedContext(std::shared_ptr<ServedModel> model);
    // Adds what was done to the model's totals.
    ~ServedContext();
    ServedContext(const ServedContext &) = delete;
    ServedContext &operator=(const ServedContext &) = delete;

    // What ggml_backend_sched_graph_compute_async returns; where it fails a line says why. By one thread at a time.
    int compute(void *scheduler, void *graph, ComputeGraph real);
    // Adds what was done so far.
    void add_to(Totals &totals) const;
    const ServedModel &model() const { return *model_; }

private:
    int timed(void *scheduler, void *graph, ComputeGraph real);
    int report(const HookError &error) const;
    int prove();

    std::shared_ptr<ServedModel> model_;
    std::optional<OwnAttention> attention_; // borrowed by the hook
    GraphHook hook_;
    mutable std::mutex proof_mutex_; // of what follows, which others read while something is computed
    std::optional<Proof> proof_;     // of its gates; none where they stay on
    bool proven_ = false;
};

} // namespace seeddelta
