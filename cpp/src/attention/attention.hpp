// Attention over cached keys and values, by all threads of an operation: exact, of any number of tokens, or of one
// token over the keys that the bits of a KeyPack choose. Knows nothing of ggml. The result does not depend on the
// number of threads: positions are cut into chunks of kAttentionChunk, whose partial results are merged in order.
#pragma once
#include <atomic>
#include <cstdint>
#include <vector>

#include "attention/key_pack.hpp"
#include "linear/workspace.hpp"

namespace seeddelta {

// What a KV head did: in one operation, or in all.
struct HeadOutcome {
    uint64_t visible = 0;  // positions that the mask allows
    uint64_t kept = 0;     // those that were attended to
    uint64_t compared = 0; // operations compared with the exact result, of which the rest are sums
    double gap = 0.0;      // relative error of the output of the heads that share it
    double recall = 0.0;   // share of the softmax mass that was kept, their mean

    HeadOutcome &operator+=(const HeadOutcome &other) {
        visible += other.visible;
        kept += other.kept;
        compared += other.compared;
        gap += other.gap;
        recall += other.recall;
        return *this;
    }
};

// What one operation did with a KeyPack. Written by its threads.
struct PackOutcome {
    std::atomic<uint64_t> visible{0};  // pairs of KV head and position that the mask allows
    std::atomic<uint64_t> kept{0};     // those that were attended to
    std::atomic<uint64_t> scored{0};   // pairs of head and position scored by their bits
    std::atomic<uint64_t> values{0};   // rows of v read
    std::atomic<uint64_t> dense{0};    // KV heads of which so much was kept that all was taken
    std::atomic<uint64_t> unpacked{0}; // positions without bits
    std::atomic<bool> stale{false};    // the bits are not those of the keys
    // of a comparison with the exact result; valid when compared
    bool compared = false;
    double gap = 0.0;               // relative error of the output, over all heads
    double recall = 0.0;            // share of the softmax mass that was kept, mean of the heads
    std::vector<HeadOutcome> heads; // of every KV head; to be sized before the threads start
};

class Attention {
public:
    // Makes room. Not thread safe; before the threads start.
    void reserve(const AttentionProblem &p, bool packed, bool compare);

    // Bytes of scratch that a thread needs.
    static int64_t scratch_bytes(const AttentionProblem &p);

    // Single windows of positions, by the caller alone: the pairs `items` of chunk · n_kv_head + KV head. Writes to
    // partials [chunks, heads, 2 + dim_v] and, unless it is null, to keys [chunks, heads, 2 + dim_k]: AttentionTask.
    void windows(const AttentionProblem &p, const int32_t *items, int64_t n, float *partials, float *keys) const;
    // The share of thread `ith` of the output, from the partial results of all windows. What `shift` [chunks, heads]
    // has (null: nothing; else p has one token) is added to their largest scores.
    void merge_all(const AttentionProblem &p, const float *partials, const float *shift, int ith, int nth) const;
    void wait(int nth) { barrier_.barrier(nth); }
    // Room for the partial results of all windows; after reserve().
    float *partials() { return partials_.data; }

    // All nth threads call these with the same arguments but ith. Contain spin barriers. All but exact are for one
    // token.
    void exact(const AttentionProblem &p, int ith, int nth);
    // With `compare` the exact result is computed too, compared, and given. `repack` first packs what has no bits.
    void packed(const AttentionProblem &p, KeyPack &pack, const PackSettings &settings, bool repack, bool compare,
                PackOutcome &outcome, int ith, int nth);

private:
    struct Scratch; // of a thread

    // The share of thread `ith`, where there are more than kFewQueries queries. No barrier.
    static void prompt(const AttentionProblem &p, int ith, int nth);
    static int64_t prompt_bytes(const AttentionProblem &p);

    // Returns how many rows of v were read.
    int64_t attend(const AttentionProblem &p, Scratch &scratch, int64_t kv_head, int64_t chunk, const int32_t *rows,
                   const float *bias, int64_t n, const float *given, float negligible, float *partials,
                   float *keys = nullptr, int64_t query = 0, int64_t queries = 1) const;
    void attend_all(const AttentionProblem &p, Scratch &scratch, int64_t first_head, int64_t heads, int64_t chunk,
                    float *partials, float *keys = nullptr) const;
    void attend_kept(const AttentionProblem &p, Scratch &scratch, int64_t kv_head, int64_t chunk,
                     const PackSettings &settings, PackOutcome &outcome) const;
    void score(const AttentionProblem &p, const KeyPack &pack, const PackSettings &settings, Scratch &scratch,
               int64_t kv_head, int64_t chunk);
    void choose(const AttentionProblem &p, const KeyPack &pack, const PackSettings &settings, Scratch &scratch,
                int64_t kv_head, bool all, PackOutcome &outcome, bool count) const;
    float limit_of(const PackSettings &settings, float share, const float *near, int64_t n, int64_t visible) const;
    void merge(const AttentionProblem &p, int64_t head, const float *partials, const float *shift, float *out,
               float *top, float *sum, int64_t query = 0) const;
    void pack_keys(const AttentionProblem &p, KeyPack &pack, const PackSettings &settings, int ith, int nth);
    void audit(const AttentionProblem &p, KeyPack &pack, const PackSettings &settings, PackOutcome &outcome, int ith,
               int nth) const;
    void compare_head(const AttentionProblem &p, Scratch &scratch, int64_t head, float kept_top, float kept_sum);
    void sum_comparison(const AttentionProblem &p, PackOutcome &outcome) const;

    SpinBarrier barrier_;
    Buffer<float> partials_;       // of every stream: AttentionProblem::partial_floats()
    Buffer<float> exact_partials_; // the same, for a comparison
    Buffer<float> estimates_;      // [heads, padded positions] scores by bits
    Buffer<float> tops_;           // [heads, chunks] largest of them
    Buffer<uint64_t> visible_;     // [chunks, 2] bits
    std::vector<double> compared_; // [heads, 3] squared error, squared norm, mass kept
};

} // namespace seeddelta
