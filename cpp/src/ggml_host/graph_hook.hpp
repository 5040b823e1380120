// The native cb_eval of one llama context. Before a graph is computed it turns every MUL_MAT, MUL_MAT_ID and
// GET_ROWS of a registered weight into a custom operation in place; ggml's own thread pool then runs ours. One context
// computes one node at a time, so one hook has one workspace.
#pragma once
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ggml_host/attention_hook.hpp"
#include "ggml_host/ggml_abi.hpp"
#include "ggml_host/hook_error.hpp"
#include "ggml_host/weight_registry.hpp"
#include "linear/arenas.hpp"
#include "seeddelta/compute.hpp"

namespace seeddelta {

class GraphHook;

// What is counted of one weight in one context.
enum class WeightCount : uint8_t {
    own_calls,        // products computed by the operator; told by kinds of operators, not by its name
    rewrites,         // nodes met in graphs and served, also those of a graph that is used again
    calls,            // products computed, also those of the original model
    tokens,           // columns of those products
    reused,           // products that took the quantized activations of the one before
    prefetched,       // products whose first codes the one before asked the memory for
    rows,             // rows looked up
    experts,          // experts computed with, each once a product however many tokens chose it
    dense_calls,      // products and look-ups computed from the dense fallback
    nonfinite_events, // those with NaN or infinity in activations or result
    active_inputs,    // of gated matrices: inputs computed with
    skipped_inputs,   // and those left out
    blocks,           // of proc_sparse: multiplied
    n,
};
inline constexpr const char *kWeightCounts[] = {
    "own_calls",   "rewrites",         "calls",         "tokens",         "reused", "prefetched", "rows", "experts",
    "dense_calls", "nonfinite_events", "active_inputs", "skipped_inputs", "blocks"};
static_assert(std::size(kWeightCounts) == Counters<WeightCount>::kSize);

// A registered weight in one context. The nodes are the userdata of the custom operation.
struct ServedWeight {
    struct Node {
        GraphHook *hook;
        ServedWeight *served;
        WeightUse use;
        bool reuse;
    };
    RegisteredWeight *weight = nullptr;
    // The weight's use_dense as this context sees it: it changes between products only, so that all threads agree.
    bool dense = false;
    ServedWeight *next = nullptr; // whose product comes after this one's in the graph; null: not known
    OperatorState state;
    Counters<WeightCount> counters; // written by llama's threads, read by anyone
    Node nodes[3][2] = {};          // by use and reuse

    Node &node(WeightUse use, bool reuse) { return nodes[static_cast<size_t>(use) - 1][reuse ? 1 : 0]; }
};

class GraphHook {
public:
    // Both are borrowed and must outlive the hook; the hook must outlive the llama context.
    GraphHook(const GgmlAbi &abi, WeightRegistry &registry);
    GraphHook(const GraphHook &) = delete;
    GraphHook &operator=(const GraphHook &) = delete;

    // ggml_backend_sched_eval_callback; user_data is the hook. Returns false for ask: a split stays whole. Without
    // memory for a node it ends the graph there.
    static bool callback(void *tensor, bool ask, void *user_data) noexcept;
    // ggml_custom_op_t; userdata is a ServedWeight::Node.
    static void compute(void *dst, int ith, int nth, void *userdata) noexcept;

    // Attention is taken over, too, from the next graph on. Borrowed.
    void set_attention(AttentionHook *attention) { attention_ = attention; }
    AttentionHook *attention() { return attention_; }
    const AttentionHook *attention() const { return attention_; }

    std::deque<ServedWeight> &served() { return served_; }
    const std::deque<ServedWeight> &served() const { return served_; }
    // To be changed while nothing is computed.
    std::deque<Gate> &gates() { return gates_; }
    const std::deque<Gate> &gates() const { return gates_; }
    // What the gates leave out of the next products, a set of GateFeature. While nothing is computed.
    void pause(unsigned features);
    // What the gates have done, summed over them.
    struct GateActivity {
        uint64_t kwta = 0, pack = 0, zeros = 0; // tokens that they chose for
        uint64_t events = 0;                    // tokens whose changes were sent
        uint64_t given_up = 0;                  // gates whose events failed one of the first checks
    };
    GateActivity activity() const;
    // The largest number of tokens of a product with a gate, or of attention of ours, in the graphs visited since the
    // last call; 0: none was.
    int64_t take_tokens() {
        return std::max(std::exchange(gated_tokens_, 0), attention_ == nullptr ? 0 : attention_->take_tokens());
    }
    uint64_t nodes_seen() const { return nodes_seen_.load(std::memory_order_relaxed); }
    // The first error since the last call, which clears it.
    HookError take_error();

private:
    // The last served node of the walk, whose activations the next one may use again.
    struct Previous {
        const void *x = nullptr;
        const void *data = nullptr;
        const void *ids = nullptr; // of experts
        const ServedWeight *served = nullptr;
    };

    void visit(void *node);
    void give_up() noexcept;
    void make_room(const void *node, const ServedWeight &served, WeightUse use);
    ServedWeight *find(const void *tensor, bool &elsewhere);
    WeightUse use_of(const void *node) const;
    bool fits(const void *node, WeightUse use, const Operator &op) const;
    bool fits_product(const void *node, WeightUse use, const MatrixShape &shape) const;
    bool fits_heads(const void *node) const;
    bool fits_lookup(const void *node, const MatrixShape &shape) const;
    bool fits_experts(const void *node) const;
    bool contiguous(const void *tensor) const;
    bool numbers(const void *ids) const;
    Work work_of(const void *node, WeightUse use, bool reuse) const;
    void serve_product(void *node, ServedWeight &served, WeightUse use);
    const NodeForm &form_of(WeightUse use) const;
    void check_use(const void *node, int first);
    void refuse(HookErrorKind kind, const ServedWeight &served, const void *node, const char *what);
    void run(void *dst, int ith, int nth, const ServedWeight::Node &node);
    void prefetch_next(const ServedWeight &served, int ith, int nth) const;
    void finish(void *dst, const ServedWeight::Node &node, bool dense, bool reused);
    void count_product(const void *dst, const ServedWeight::Node &node, bool dense, bool reused);
    bool recover(const void *dst, const ServedWeight::Node &node);
    int64_t tokens_of(const void *x) const { return abi_.ne_of(x, 1) * abi_.ne_of(x, 2) * abi_.ne_of(x, 3); }
    void record(HookErrorKind kind, const ServedWeight *served, const char *detail) noexcept;

    const GgmlAbi &abi_;
    WeightRegistry &registry_;
    std::deque<Gate> gates_;
    AttentionHook *attention_ = nullptr;
    std::deque<ServedWeight> served_;
    std::unordered_map<const RegisteredWeight *, ServedWeight *> served_of_;
    // Weight tensors live as long as the context, so a pointer that was found once keeps its meaning; null: no weight.
    std::unordered_map<const void *, ServedWeight *> by_pointer_;
    Previous previous_;
    ServedWeight *last_product_ = nullptr; // of the walk; a walk's first comes after the last of the one before
    uint64_t products_at_visit_ = 0;
    int64_t gated_tokens_ = 0;
    std::atomic<uint64_t> nodes_seen_{0};

    Workspace workspace_;
    Arenas arenas_;
    std::atomic<bool> given_up_{false}; // nothing is computed until the error is taken
    ComputeStatus status_;
    std::atomic<int> finished_threads_{0};
    std::atomic<uint64_t> products_{0};
    // Whose activations the workspace holds. Written by the last thread of a product, read by all threads of the next.
    const void *prepared_x_ = nullptr;

    std::atomic<int> error_kind_{0};
    std::atomic<const ServedWeight *> error_weight_{nullptr};
    std::atomic<const char *> error_detail_{nullptr};
    std::array<char, 256> refusal_{}; // the detail, where it names a node
};

} // namespace seeddelta
