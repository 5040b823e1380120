// Takes over the attention of single tokens (FLASH_ATTN_EXT, or two products and a softmax, with one query and a cache
// of F16 or Q8_0) in the graphs of one llama context, and keeps the bits of its keys (KeyPack) in step with what is
// written to the cache.
#pragma once
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "attention/attention.hpp"
#include "attention/attention_events.hpp"
#include "ggml_host/attention_chain.hpp"
#include "linear/arenas.hpp"

namespace seeddelta {

// Layers [first, last], or their KV heads [first_head, last_head], have another mode or budget. The heads of a layer
// have bits of one mode, or are exact.
struct LayerOverride {
    int64_t first;
    int64_t last;
    int64_t first_head; // -1: all heads
    int64_t last_head;
    PackMode mode;
    float budget;
};

struct AttentionSettings {
    PackSettings pack; // its mode exact: all keys, in every layer
    std::vector<LayerOverride> layers;
    int64_t min_context = 1024; // positions below which attention is exact
    int64_t gap_every = 64;     // operations of a layer between comparisons with the exact result; 0: none
    float gap_limit = 0.3F;     // a layer whose mean relative error is above it becomes exact
    EventSpec event;            // of layers that are exact
};

struct AttentionCounters {
    std::atomic<uint64_t> nodes{0};  // of attention met and taken over
    std::atomic<uint64_t> left{0};   // of one token and left to ggml, because they do not fit
    std::atomic<uint64_t> exact{0};  // operations with all keys
    std::atomic<uint64_t> packed{0}; // operations with chosen keys
    std::atomic<uint64_t> events{0}; // operations with the windows that have changed
    std::atomic<uint64_t> visible{0}, kept{0}, scored{0}, popcount{0}, values{0}, dense{0}; // see PackOutcome
    std::atomic<uint64_t> repacks{0};  // operations that packed keys first
    std::atomic<uint64_t> rebuilds{0}; // caches of which everything had to be packed again
    std::atomic<uint64_t> stale{0};    // of those, found by comparing bits with keys
    std::atomic<uint64_t> compared{0}; // with the exact result
    std::atomic<uint64_t> disabled{0}; // layers that became exact
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

    const AttentionCounters &counters() const { return counters_; }
    const EventCounters &events() const { return event_counters_; }
    const AttentionSettings &settings() const { return settings_; }
    // Whether all attention is exact from the next graph on. While nothing is computed.
    void pause(bool exact) { paused_.store(exact, std::memory_order_relaxed); }
    // Why nodes were left to ggml; null when none was.
    const char *left_because() const { return left_because_.load(std::memory_order_relaxed); }
    // Whether a result was zeros, because a graph was not computed as a whole.
    bool torn() const { return torn_.load(std::memory_order_relaxed); }
    // Sums over the comparisons: of the relative errors, of the kept softmax masses.
    double gap_sum() const {
        const std::lock_guard lock(mutex_);
        return gap_sum_;
    }
    double recall_sum() const {
        const std::lock_guard lock(mutex_);
        return recall_sum_;
    }
    int64_t pack_bytes() const;
    int64_t packed_layers() const;
    // A layer and a KV head that is named in `layers` and that it does not have; -1: none.
    std::pair<int64_t, int64_t> missing_head() const { return missing_head_; }

    // What one KV head did in all operations of its layer that were packed.
    struct HeadTotal {
        int64_t layer;
        int64_t kv_head;
        bool exact; // by its settings
        float budget;
        HeadOutcome outcome;
    };
    std::vector<HeadTotal> heads() const;
    // Of the layers with events: their number, those that compute with them now, the largest gap of the last checks,
    // the time of their last operations, and the bytes of their memory.
    struct EventTotal {
        int64_t layers = 0, active = 0, given_up = 0;
        float gap = 0.0F;
        double last_ns = 0.0;
        int64_t bytes = 0;
    };
    EventTotal event_total() const;

private:
    // The keys of one layer.
    struct Layer {
        int64_t number = -1; // of the layer; -1: its cache has an unknown name
        PackSettings settings;
        std::unique_ptr<KeyPack> pack; // null: exact
        int64_t rows = 0;              // of the cache
        int64_t row_bytes = 0;
        float gap = -1.0F; // moving mean; -1: not compared yet
        bool disabled = false;
        uint64_t operations = 0;
        std::vector<HeadOutcome> heads;
        std::unique_ptr<EventMemory> events; // null: none
        struct {
            bool active = true;
            float gap = 0.0F;
            double last_ns = 0.0;
            int64_t bytes = 0;
            bool given_up = false;
        } told; // of the events, after the last operation

        bool remembers() const { return pack != nullptr || events != nullptr; }
        void written(int64_t row);
        void forget();
        void forget_queries();
    };
    // One attention node; the userdata of the custom operation. Lives as long as the hook.
    struct Node {
        AttentionHook *hook = nullptr;
        Layer *layer = nullptr;
        AttentionOperands operands;
        std::vector<float> result; // [heads, dim_v] without flash attention
        bool ready = false;        // there is room for what the plan says; else nothing is computed
        bool done = false;         // the result is there; written by one thread
        bool packed = false, repack = false, compare = false, events = false;
        PackOutcome outcome;
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
    Layer *layer_of(const void *node, const void *k);
    Layer new_layer(const void *k, int64_t number);
    PackSettings settings_of(int64_t layer, int64_t n_kv_head);
    void plan(const void *node, Node &served);
    bool plan_events(const AttentionProblem &p, const Node &served);
    void watch(const void *node);
    void watch_rows(const void *node);
    void run(void *dst, int ith, int nth, Node &node);
    void attend(void *dst, int ith, int nth, Node &node);
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
    AttentionCounters counters_;
    EventCounters event_counters_;
    int64_t event_layers_ = 0;
    std::atomic<bool> invalid_{false};
    std::atomic<bool> torn_{false};
    std::atomic<bool> paused_{false};
    std::atomic<const char *> left_because_{nullptr};
    double gap_sum_ = 0.0, recall_sum_ = 0.0;
    std::pair<int64_t, int64_t> missing_head_{-1, -1};
};

} // namespace seeddelta
