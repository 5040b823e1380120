// Takes over attention (FLASH_ATTN_EXT, or of a single token two products and a softmax) in the graphs of one llama
// context, and tells the selectors of its layers what is written to the cache.
#pragma once
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "attention/key_selector.hpp"
#include "ggml_host/attention_chain.hpp"
#include "linear/arenas.hpp"

namespace seeddelta {

enum class AttentionCount : uint8_t {
    nodes,   // of attention met and taken over
    exact,   // operations with all keys, of up to kFewQueries tokens a sequence
    prompts, // of more
    left,    // left to ggml, because they do not fit
    n,
};

class AttentionHook {
public:
    AttentionHook(const GgmlAbi &abi, const AttentionAbi &attention, AttentionSettings settings);
    AttentionHook(const AttentionHook &) = delete;
    AttentionHook &operator=(const AttentionHook &) = delete;

    // A node of a graph that is about to be computed. Returns true for one that it takes over.
    bool visit(void *node);
    // Two of ggml_custom_op_t; userdata is a Node. Without flash attention the first one computes, the second one, in
    // place of the product with the values, gives the result.
    static void compute(void *dst, int ith, int nth, void *userdata) noexcept;
    static void deliver(void *dst, int ith, int nth, void *userdata) noexcept;
    // Somebody wrote to the caches without a graph. Between two decodes.
    void invalidate() { invalid_.store(true, std::memory_order_release); }

    const Counters<AttentionCount> &counters() const { return counters_; }
    const SelectorTotals &totals() const { return totals_; }
    const AttentionSettings &settings() const { return settings_; }
    // Whether all attention is exact from the next graph on. While nothing is computed.
    void pause(bool exact) { paused_.store(exact, std::memory_order_relaxed); }
    // The largest number of tokens of an operation since the last call; 0: there was none.
    int64_t take_tokens() { return std::exchange(tokens_, 0); }
    // Why nodes were left to ggml; null when none was.
    const char *left_because() const { return left_because_.load(std::memory_order_relaxed); }
    // Whether a result was zeros, because a graph was not computed as a whole.
    bool in_pieces() const { return in_pieces_.load(std::memory_order_relaxed); }
    // Of all selectors, and under the lock: what totals() sums over comparisons.
    SelectorReport report() const;
    std::pair<double, double> gap_and_recall_sum() const;
    // A layer and a KV head that is named in `layers` and that it does not have; -1: none.
    std::pair<int64_t, int64_t> missing_head() const { return missing_head_; }

private:
    // The keys of one layer.
    struct Layer {
        int64_t rows = 0; // of the cache
        int64_t row_bytes = 0;
        std::unique_ptr<KeySelector> selector; // null: all keys
    };
    // One attention node; the userdata of the custom operation. Lives as long as the hook.
    struct Node {
        AttentionHook *hook = nullptr;
        Layer *layer = nullptr;
        AttentionOperands operands;
        std::vector<float> result; // [heads, dim_v] without flash attention
        bool ready = false;        // there is room for what the plan says; else nothing is computed
        bool done = false;         // the result is there; written by one thread
        SelectorPlan plan;
        std::atomic<int> finished{0};
    };

    void leave(const char *why);
    void others_compute(const void *k);
    bool take_flash(void *node);
    bool take_chain(void *node);
    bool takes(const void *node, const AttentionOperands &operands, int heads);
    bool receives(const void *node, const AttentionOperands &operands, int heads) const;
    Node &node_of(const void *node, const AttentionOperands &operands);
    AttentionProblem problem_of(const void *node, Node &served) const;
    int64_t number_of(const void *node) const;
    Layer *layer_of(const void *node, const void *k, const AttentionProblem &p);
    Layer new_layer(const void *k, int64_t number, const AttentionProblem &p);
    void plan(const void *node, Node &served);
    void watch(const void *node);
    void watch_rows(const void *node);
    void run(void *dst, int ith, int nth, Node &node);
    void settle(Node &node);

    const GgmlAbi &abi_;
    AttentionAbi attention_;
    AttentionSettings settings_;
    AttentionChain chain_;
    Attention compute_;
    Arenas arenas_;
    using Place = std::pair<uintptr_t, int64_t>; // address of the cache's first key, number of the layer
    std::map<Place, Layer> layers_;
    // Held where layers and sums change, and by those who read them in another thread than the graph's.
    mutable std::mutex mutex_;
    std::unordered_map<const void *, std::unique_ptr<Node>>
        nodes_; // by the address of the node, which graphs use again
    int64_t tokens_ = 0;
    Counters<AttentionCount> counters_;
    SelectorTotals totals_;
    std::atomic<bool> invalid_{false};
    std::atomic<bool> in_pieces_{false};
    std::atomic<bool> paused_{false};
    std::atomic<const char *> left_because_{nullptr};
    std::pair<int64_t, int64_t> missing_head_{-1, -1};
};

} // namespace seeddelta
