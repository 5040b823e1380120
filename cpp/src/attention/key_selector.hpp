// The seam between a runtime that walks a graph and what attention of single tokens leaves out: all keys are attended
// to, or those that their bits choose (pack_selector.cpp), or the windows that have changed (event_selector.cpp). A
// selector is the memory of one layer in one context.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "attention/attention.hpp"
#include "attention/attention_events.hpp"

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

    // Whether any layer attends to keys that their bits choose.
    bool chooses_keys() const {
        return pack.mode != PackMode::exact ||
               std::any_of(layers.begin(), layers.end(), [](const auto &one) { return one.mode != PackMode::exact; });
    }
};

// Those of one layer. A head that an override names and the layer does not have is written to `missing`.
PackSettings pack_settings_of(const AttentionSettings &settings, int64_t layer, int64_t n_kv_head,
                              std::pair<int64_t, int64_t> &missing);

// What is counted of the layers whose keys are chosen by their bits.
enum class PackCount : uint8_t {
    operations, // with chosen keys
    visible,    // up to `dense`, and `popcount`: see PackOutcome
    kept,
    scored,
    values,
    dense,
    repacks,  // operations that packed keys first
    rebuilds, // caches of which everything had to be packed again
    stale,    // of those, found by comparing bits with keys
    compared, // with the exact result
    disabled, // layers that became exact
    popcount,
    n,
};

// What the selectors of a context share. Sums and `event_layers` under the lock of whoever owns it.
struct SelectorTotals {
    Counters<PackCount> pack;
    double gap_sum = 0.0;    // over the comparisons: relative errors
    double recall_sum = 0.0; // kept softmax masses
    EventCounters event;
    int64_t event_layers = 0; // share the budget
};

// What one KV head did in all operations of its layer that chose keys.
struct HeadTotal {
    int64_t layer;
    int64_t kv_head;
    bool exact; // by its settings
    float budget;
    HeadOutcome outcome;
};

// What selectors tell of themselves, added up over the layers.
struct SelectorReport {
    int64_t pack_bytes = 0;
    int64_t packed_layers = 0; // that choose keys now
    std::vector<HeadTotal> heads;
    // with events: layers, those that compute with them now, the largest gap of the last checks, the time of the last
    // operations, the bytes of the memory
    int64_t event_layers = 0, event_active = 0, event_given_up = 0;
    float event_gap = 0.0F;
    double event_ns = 0.0;
    int64_t event_bytes = 0;
};

// What one operation of a layer with a selector does; set before its threads start.
struct SelectorPlan {
    bool chosen = false; // false: it is exact
    bool repack = false, compare = false;
    PackOutcome outcome;
};

class KeySelector {
public:
    KeySelector() = default;
    KeySelector(const KeySelector &) = delete;
    KeySelector &operator=(const KeySelector &) = delete;
    virtual ~KeySelector() = default;

    // A position's key and value are written, now or in the graph being prepared.
    virtual void written(int64_t row) = 0;
    // Nothing is known of the cache any more.
    virtual void forget() = 0;
    // Queries came by that the selector has not seen.
    virtual void forget_queries() {}

    // Whether it is for such heads, and has room for the positions.
    virtual bool fits(const AttentionProblem &p) const = 0;
    // Plans the next operation and makes room for it. False: it is to be exact. Without ALiBi, with a mask.
    virtual bool plan(const AttentionProblem &p, Attention &attention, SelectorPlan &plan) = 0;
    // All nth threads of the operation call this with the same arguments but ith.
    virtual void attend(const AttentionProblem &p, Attention &attention, SelectorPlan &plan, int ith, int nth) = 0;
    // After an operation, also an exact one. Under the lock, which report() is called under, too.
    virtual void settle(SelectorPlan &plan) = 0;
    virtual void report(SelectorReport &sum) const = 0;
};

// The selector of a layer whose cache has so many positions; null: it attends to all keys. p is an operation of the
// layer. What is borrowed outlives it.
std::unique_ptr<KeySelector> make_selector(const AttentionSettings &settings, int64_t layer, const AttentionProblem &p,
                                           int64_t rows, SelectorTotals &totals,
                                           std::pair<int64_t, int64_t> &missing_head);

std::unique_ptr<KeySelector> pack_selector(const AttentionSettings &settings, PackSettings of_layer, int64_t layer,
                                           const AttentionProblem &p, int64_t rows, SelectorTotals &totals);
std::unique_ptr<KeySelector> event_selector(const EventSpec &spec, const AttentionProblem &p, int64_t rows,
                                            SelectorTotals &totals);

} // namespace seeddelta
