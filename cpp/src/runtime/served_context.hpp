// One scheduler of llama.cpp, and so one context, that computes with the weights of a model of ours, or attention.
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
    // Null: of an ordinary model. What was done is added to `totals` when it ends, which are of the model.
    ServedContext(std::shared_ptr<ServedModel> model, const Options &options, Totals &totals);
    explicit ServedContext(const std::shared_ptr<ServedModel> &model)
        : ServedContext(model, model->options(), model->totals) {}
    ~ServedContext();
    ServedContext(const ServedContext &) = delete;
    ServedContext &operator=(const ServedContext &) = delete;

    // What ggml_backend_sched_graph_compute_async returns; where it fails a line says why. By one thread at a time.
    int compute(void *scheduler, void *graph, ComputeGraph real);
    // A node of a graph, as ggml_backend_sched_eval_callback has it: in place of compute, where the program calls it.
    bool eval(void *tensor, bool ask) noexcept { return GraphHook::callback(tensor, ask, &hook_); }
    // After a graph was computed (or, `whole` is false, not all of it): why its result does not count; empty: it does.
    struct Verdict {
        int status = 0; // ggml_status
        std::string why;
    };
    Verdict settle(bool whole);
    uint64_t nodes_seen() const { return hook_.nodes_seen(); }
    // Adds what was done so far.
    void add_to(Totals &totals) const;
    const ServedModel *model() const { return model_.get(); }
    const Options &options() const { return options_; }
    // Somebody wrote to the caches without a graph.
    void forget_keys() {
        if (attention_) {
            attention_->hook().invalidate();
        }
    }
    // What messages begin with.
    std::string where() const { return model_ == nullptr ? "ordinary models" : model_->path(); }

private:
    int timed(void *scheduler, void *graph, ComputeGraph real);
    Verdict verdict(const HookError &error) const;
    static int told(const Verdict &verdict);
    bool prove();

    std::shared_ptr<ServedModel> model_;
    const Options &options_;
    Totals &totals_;
    WeightRegistry none_;                   // of an ordinary model
    std::optional<OwnAttention> attention_; // borrowed by the hook
    GraphHook hook_;
    mutable std::mutex proof_mutex_; // of what follows, which others read while something is computed
    std::optional<Proof> proof_;     // of its gates; none where they stay on
    bool proven_ = false;
};

} // namespace seeddelta
