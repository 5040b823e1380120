// Bits of the keys in one KV cache: for each KV head and position the signs of the centered key, and with `ternary`
// also which channels are large enough, for that channel, to have one. They say which keys a query is likely to attend
// to (docs/internals/statepack.md).
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "attention/problem.hpp"

namespace seeddelta {

enum class PackMode : uint8_t { exact, binary, ternary };

// What one KV head does, when the heads of a layer differ.
struct HeadChoice {
    bool exact = false; // all keys, whatever the rest of the settings says
    float budget = 0.25F;
};

struct PackSettings {
    PackMode mode = PackMode::binary;
    float eps = 1.2F;        // ternary: channels with |k - mean| / scale above eps times the key's mean have a bit
    bool popcount = false;   // score with signs of the query and popcount instead of 6 bits of it
    bool refine = true;      // false: the score by bits is used in the softmax
    float budget = 0.25F;    // share of the visible positions up to 1, else their number
    float mass = 0.0F;       // keep no more than this share of the estimated softmax mass needs; 0: budget alone
    int64_t sinks = 4;       // first positions, always kept
    int64_t recent = 64;     // last positions, always kept
    float density = 0.5F;    // above this share kept, all are
    float negligible = 0.0F; // AttentionTask::negligible
    int64_t gamma_chunk = 0; // positions that share a gamma; 0: all with binary, none with ternary
    float gamma_cap = 4.0F;  // times the moving mean
    int64_t audits = 2;      // positions a KV head whose bits are compared with the key in every operation
    std::vector<HeadChoice> heads; // of every KV head; empty: none differs

    bool exact(int64_t kv_head) const { return !heads.empty() && heads[static_cast<size_t>(kv_head)].exact; }
    float budget_of(int64_t kv_head) const {
        return heads.empty() ? budget : heads[static_cast<size_t>(kv_head)].budget;
    }
    bool keeps_all(int64_t kv_head) const { return exact(kv_head) || (budget_of(kv_head) == 1.0F && mass == 0.0F); }
    // Whether scores by bits are needed: to choose, or in the softmax.
    bool scores(int64_t kv_head) const { return !exact(kv_head) && (!keeps_all(kv_head) || !refine); }
};

class KeyPack {
public:
    // capacity: positions of the cache. recent: PackSettings::recent.
    KeyPack(int64_t n_kv_head, int64_t dim, int64_t capacity, PackMode mode, int64_t recent);

    // Whether it is for such keys, and has room for them.
    bool fits(const AttentionProblem &p, PackMode mode) const {
        return mode_ == mode && n_kv_head_ == p.n_kv_head && dim_ == p.dim_k && p.n_kv <= capacity_;
    }
    // A position's key is written, now or in the graph being prepared.
    void written(int64_t row);
    // Nothing is known any more.
    void forget();
    // Forgets the bits when they are measured by few keys, and there are at least twice as many now.
    void outgrow();

    // The following are called by the threads of an operation, between barriers.
    void calibrate(const AttentionProblem &p, int64_t kv_head);
    void pack(const AttentionProblem &p, const PackSettings &settings, int64_t chunk);
    void smooth(const PackSettings &settings, int64_t kv_head, int64_t n_kv);
    // The first position from `row` on, and round the end, that is visible and has bits; -1: none.
    int64_t known_from(const AttentionProblem &p, int64_t row) const;
    // Whether the bits of a packed position are those of its key; true for -1.
    bool agrees(const AttentionProblem &p, const PackSettings &settings, int64_t kv_head, int64_t row) const;

    bool valid(int64_t row) const { return (valid_[static_cast<size_t>(row / 64)] >> (row % 64) & 1) != 0; }
    const uint64_t *valid_words() const { return valid_.data(); }
    // Positions written last, as bits; at most `recent` of them.
    const std::vector<uint64_t> &recent_words() const { return recent_words_; }
    const uint8_t *plane(int64_t kv_head, int64_t chunk, bool negative) const;
    // What the query's channels are multiplied with before they meet the bits.
    const float *scale(int64_t kv_head) const { return scale_.data() + kv_head * dim_; }
    const float *gamma(int64_t kv_head) const { return gamma_.data() + kv_head * capacity_; }
    int64_t capacity() const { return capacity_; }
    PackMode mode() const { return mode_; }
    int64_t nbytes() const;

    // Written by one thread while no other runs.
    int64_t pending = 0;     // positions that may lack bits
    bool calibrated = false; // means and scales are there
    int64_t calibration_rows = 0;
    uint64_t calibrated_at = 0; // of the operations
    uint64_t operations = 0;    // chooses the positions whose bits are compared with their keys

private:
    struct Row; // bits and magnitude of one key
    void describe(const AttentionProblem &p, const PackSettings &settings, int64_t kv_head, int64_t position,
                  Row &row) const;
    uint8_t *byte_at(std::vector<uint8_t> &plane, int64_t kv_head, int64_t row) const;

    int64_t n_kv_head_, dim_, capacity_; // capacity: whole chunks
    PackMode mode_;
    std::vector<uint64_t> valid_, recent_words_;
    std::vector<int64_t> ring_; // positions written last; -1: none
    size_t ring_next_ = 0;
    std::vector<uint8_t> positive_, negative_; // [kv_head][block][dim / 8][kKeyBlock]
    std::vector<float> mean_, scale_;          // [kv_head, dim] of a channel: mean, mean distance from it
    std::vector<float> magnitude_, gamma_;     // [kv_head, capacity]
};

} // namespace seeddelta
