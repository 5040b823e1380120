// Event-driven attention (docs/internals/skipping.md): for every window of kAttentionChunk positions a layer remembers
// the partial result of its last computation, and with which query that was. A token computes again what has changed
// most; of the others the remembered sum of values is used, with the weight that the new query gives it to first order.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <vector>

#include "attention/attention.hpp"
#include "format/counter.hpp"
#include "gating/event.hpp"
#include "linear/workspace.hpp"

namespace seeddelta {

// What is counted of all layers of a context. Windows are pairs of a KV head and a window in which any key is visible.
enum class EventCount : uint8_t {
    operations, // with events, or without them because a gap was too large
    full,       // of them those that computed every window
    given,      // windows of the others that are computed in any case
    seen,       // those that are not
    sent,       // of these, computed because they have changed
    forced,     // or for their age
    ages,       // sum over the windows that were not computed, in tokens
    quorum,     // operations in which the quorum left changes out
    budget,     // in which the budget did
    heads,      // pairs of operation and KV head
    idle,       // of them those that computed none of the windows that could be reused
    checks,     // operations compared with the exact result
    failed,     // of them beyond the tolerance
    resets,     // times that a layer's memory was dropped
    wrong,      // of them, because a window was not what its keys and values give
    attended,   // operations that were computed with what is remembered
    n,
};
using EventCounters = Counters<EventCount>;

// The memory of one layer.
class EventMemory {
public:
    EventMemory(const EventSpec &spec, const AttentionProblem &p, int64_t rows, EventCounters &counters);

    // Whether it is for such heads, and has room for the positions.
    bool fits(const AttentionProblem &p) const;
    // A position's key and value are written, now or in the graph being prepared.
    void written(int64_t row);
    // Nothing is known any more.
    void forget();
    // Whether the next operation is to be computed without it, because of a gap. It is counted as one.
    bool paused();

    // One token's attention. All nth threads call it with the same arguments but ith. Without ALiBi, with a mask.
    // budget_ns: time that it may take; only of a spec with a budget.
    void attend(const AttentionProblem &p, Attention &attention, double budget_ns, int ith, int nth);

    const EventLimits &limits() const { return limits_; }
    double last_ns() const { return last_ns_; } // of the last operation
    int64_t nbytes() const;

private:
    enum class Kind : uint8_t { empty, given, ranked }; // no key is visible; always computed; may be reused

    bool same_mask(const AttentionProblem &p, int64_t chunk);
    void sort_windows(const AttentionProblem &p, bool whole);
    void begin(const AttentionProblem &p);
    void compute(const AttentionProblem &p, Attention &attention, const std::vector<int32_t> &items, int64_t n, int ith,
                 int nth);
    void audit(const AttentionProblem &p, Attention &attention);
    void measure(const AttentionProblem &p, int64_t item);
    void estimate(const AttentionProblem &p, int ith, int nth);
    void choose(const AttentionProblem &p, double budget_ns);
    bool rank(const AttentionProblem &p);
    void check(const AttentionProblem &p, Attention &attention, int ith, int nth);
    void settle(const AttentionProblem &p);
    double elapsed() const;

    int64_t n_head_, n_kv_head_, dim_k_, dim_v_, chunks_;
    EventLimits limits_;
    EventCounters &counters_;

    // of a window, by [chunk, head]
    std::vector<float> partials_; // 2 + dim_v: AttentionTask::partial
    std::vector<float> keys_;     // 2 + dim_k: query · mean key, unused, the keys' mean with the softmax's weights
    std::vector<float> queries_;  // dim_k: the query that it was computed with
    std::vector<float> shift_;    // what the present query adds to its scores
    std::vector<float> reach_;    // what its keys' spread lets them gain beyond that
    std::vector<float> weight_;   // scratch
    // by [chunk, KV head]
    std::vector<float> square_;     // of that query
    std::vector<float> delta_;      // distance of the present query, relative to it
    std::vector<float> spread_;     // [dim_k] variance of its keys' channels
    std::vector<uint8_t> measured_; // that is there
    std::vector<int32_t> score_;
    // by chunk
    std::vector<uint8_t> mask_;  // [kAttentionChunk] numbers of the last operation
    std::vector<int64_t> bytes_; // of them
    std::vector<Kind> kind_;
    std::vector<uint8_t> visible_, changed_;
    std::vector<uint64_t> written_at_; // of written_: a position of it was written
    uint64_t written_ = 0;             // positions so far
    int64_t used_ = 0;                 // chunks of the last operation

    // of the operation
    std::vector<int32_t> given_, sent_, rest_; // pairs as chunk · n_kv_head + KV head
    int64_t n_given_ = 0, n_sent_ = 0, n_rest_ = 0;
    EventChoice choice_;
    int32_t audited_ = -1;
    std::atomic<bool> stale_{false};
    std::vector<float> kept_;         // [heads, dim_v]
    std::vector<double> top_, total_; // [heads] largest score, sum of exp(score - largest)
    std::vector<uint8_t> busy_;       // [KV heads] sent anything
    uint64_t operations_ = 0;
    std::chrono::steady_clock::time_point began_;
    double last_ns_ = 0.0;
};

} // namespace seeddelta
