// Bits of the keys in one KV cache: for each KV head and position the signs of the centered key, and with `ternary`
// also which channels are large enough, for that channel, to have one. They say which keys a query is likely to attend
// to (docs/internals/statepack.md).
#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "simd/attention_kernels.hpp"

namespace seeddelta {

inline constexpr int64_t kLargestKey = 512; // channels; sums over key bits fit 16 bits

// One token's attention. Heads [h * n_head / n_kv_head, …) share KV head h. Strides of keys and values are in bytes.
struct AttentionProblem {
    int64_t n_head = 0;
    int64_t n_kv_head = 0;
    int64_t dim_k = 0;
    int64_t dim_v = 0;
    int64_t n_kv = 0;         // positions
    const float *q = nullptr; // rows of dim_k floats
    int64_t q_stride = 0;     // in floats, between heads
    CacheType k_type = CacheType::f16;
    CacheType v_type = CacheType::f16;
    const uint8_t *k = nullptr;
    const uint8_t *v = nullptr;
    int64_t k_row = 0, k_head = 0; // between positions, between KV heads
    int64_t v_row = 0, v_head = 0;
    bool v_by_channel = false;      // v_row is between channels, whose positions lie side by side; float16
    const uint16_t *mask = nullptr; // float16 [n_kv] added to scores, -inf: not visible
    const float *mask32 = nullptr;  // the same in float32; both null: all are visible
    const float *sinks = nullptr;   // [n_head] scores that take part in the softmax without a value; null: none
    float scale = 1.0F;
    float max_bias = 0.0F;  // of ALiBi; 0: none
    float softcap = 0.0F;   // 0: none
    float *out = nullptr;   // rows of dim_v floats
    int64_t out_stride = 0; // in floats, between heads

    int64_t group() const { return n_head / n_kv_head; }
    int64_t chunks() const { return (n_kv + kAttentionChunk - 1) / kAttentionChunk; }
    int64_t padded() const { return chunks() * kAttentionChunk; }
    bool masked() const { return mask != nullptr || mask32 != nullptr; }
    // What a mask has for a position, as bits. Of float16 they are the upper ones: a sign is where it is in float32.
    uint32_t mask_bits(int64_t row) const {
        return mask != nullptr ? uint32_t{mask[row]} << 16 : std::bit_cast<uint32_t>(mask32[row]);
    }
    bool hidden(int64_t row) const {
        return masked() && mask_bits(row) == (mask != nullptr ? 0xFC000000U : 0xFF800000U);
    }
    void key(int64_t kv_head, int64_t row, float *out) const {
        widen_row(k_type, k + kv_head * k_head + row * k_row, dim_k, out);
    }
};

// Bits of the 128 positions of a chunk that the mask allows.
void visible_bits(const AttentionProblem &p, int64_t chunk, uint64_t bits[2]);

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
