// Attention over cached keys and values: what every instruction set provides. The scalar functions are the definition;
// every table gives their bits. Products with keys and values are added with fused multiply-adds. Sums have
// kLanes partial sums that are folded in halves: lane i + lane i + 8, then + 4, + 2, + 1.
#pragma once
#include <bit>
#include <cstdint>

namespace seeddelta {

inline constexpr int64_t kLanes = 16;           // head sizes are multiples of it
inline constexpr int64_t kLargestHead = 576;    // channels, whole panels; sums over key bits fit 16 bits
inline constexpr int64_t kAttentionChunk = 128; // positions whose result is a partial one; fixes the order of sums
inline constexpr int64_t kKeyBlock = 32;        // keys whose bits lie together
inline constexpr int kQueryLimit = 31;          // of a quantized query: four of them fit a signed byte

// How a cache stores its rows. ggml's Q8_0 and Q4_0 have blocks of 32 channels: a float16 scale, and as many signed
// bytes, or 16 bytes whose low halves are the first 16 channels plus 8. All are widened to float32 without rounding, so
// that what follows is the same for all.
enum class CacheType : uint8_t { f16, bf16, q8_0, q4_0 };
inline constexpr int64_t kCacheBlock = 32;
inline constexpr int64_t kQ8Bytes = 2 + kCacheBlock;
inline constexpr int64_t kQ4Bytes = 2 + kCacheBlock / 2;

static inline bool has_blocks(CacheType type) {
    return type == CacheType::q8_0 || type == CacheType::q4_0;
}

static inline int64_t cache_row_bytes(CacheType type, int64_t dim) {
    if (!has_blocks(type)) {
        return 2 * dim;
    }
    return dim / kCacheBlock * (type == CacheType::q8_0 ? kQ8Bytes : kQ4Bytes);
}

// The sum of kLanes partial sums, in their memory.
static inline float fold_lanes(float *lane) {
    for (int64_t half = kLanes / 2; half > 0; half /= 2) {
        for (int64_t i = 0; i < half; ++i) {
            lane[i] += lane[i + half];
        }
    }
    return lane[0];
}

// A row of `dim` channels as float32.
void widen_row(CacheType type, const uint8_t *row, int64_t dim, float *out);

// All heads that share one KV head, over up to kAttentionChunk positions of one chunk.
struct AttentionTask {
    const float *q; // [heads, dim_k], multiplied with the scale already
    int64_t heads;
    int64_t dim_k;
    int64_t dim_v;
    CacheType k_type;
    CacheType v_type;
    const uint8_t *k; // rows of this KV head
    const uint8_t *v;
    int64_t k_stride;    // bytes between positions
    int64_t v_stride;    // the same; by channel: between channels
    bool v_by_channel;   // float16, a channel's positions side by side. Its sums are lanes by position modulo kLanes
    int64_t positions;   // there are so many: by channel, none behind them is read
    const int32_t *rows; // [n] positions, ascending
    int64_t n;
    const float *bias;  // [n] of the mask; null: zeros
    const float *slope; // [heads] of ALiBi, the mask's factor
    float softcap;      // scores become softcap * tanh(score); 0: they do not. q is then divided by softcap already
    const float *given; // [heads, kAttentionChunk] scores in place of q·k; null: computed
    float negligible;   // values of a smaller weight, relative to the largest of the chunk, are left out; 0: none is
    float *scratch;     // attention_scratch_floats(heads, dim_k), 64-byte aligned
    float *partial;     // out: [heads, 2 + dim_v]: largest score, sum of exp(score - largest), sum of that times v
    int64_t values;     // out: positions whose values count
    // out: [heads, 2 + dim_k]: behind two unwritten numbers the sum of exp(score - largest) times k; null: not wanted
    float *keys = nullptr;
    // As many bytes as these keys and these values take, which are brought into the second cache; null: none
    const uint8_t *next_k = nullptr;
    const uint8_t *next_v = nullptr;
};

static inline int64_t attention_scratch_floats(int64_t heads, int64_t dim_k) {
    const int64_t four = 4 * (dim_k > kAttentionChunk ? dim_k : kAttentionChunk);
    return 2 * heads * kAttentionChunk + four + kAttentionChunk;
}

// Sums over the set bits of a plane of key bits. Plane: [blocks][dim / 8][kKeyBlock] bytes, bit i of byte b is channel
// 8 b + i of the key.
struct ScoreTask {
    const uint8_t *plane;
    int64_t dim;
    int64_t blocks;
    const int8_t *table; // [dim / 4][16]: sum of the quantized query's channels 4 t + i over the set bits i of an index
    const uint8_t *plus; // popcount: [dim / 8] channels that count +1
    const uint8_t *minus; // and −1
    int16_t *sums;        // [blocks * kKeyBlock] out; added to with `add` 1, taken from with −1, set with 0
    int add;
};

inline constexpr int64_t kPanel = 32;      // positions or channels whose numbers lie side by side
inline constexpr int64_t kPromptRows = 12; // rows that a kernel takes at once

static inline int64_t whole_panels(int64_t n) {
    return (n + kPanel - 1) / kPanel * kPanel;
}

// Keys and values of one KV head in one chunk as float32, in panels: what all rows of a prompt's tile are multiplied
// with.
struct WidenTask {
    CacheType k_type;
    CacheType v_type;
    const uint8_t *k; // row of the chunk's first position
    const uint8_t *v;
    int64_t k_stride; // bytes between positions
    int64_t v_stride;
    int64_t dim_k;
    int64_t dim_v;
    const uint64_t *visible; // [2] bits of positions; the others become 0, and are not read
    float *keys;             // out: [kAttentionChunk / kPanel, dim_k, kPanel positions], 64-byte aligned
    float *values;           // out: [panels of dim_v, kAttentionChunk, kPanel channels], the last one filled up with 0

    bool sees(int64_t position) const { return (visible[position / 64] >> (position % 64) & 1) != 0; }
};

// What one row of a prompt's tile sees of a chunk: positions from .. to.
struct PromptRow {
    const float *bias; // [kAttentionChunk] of the mask, -inf: not visible; null: zeros
    float slope;       // of ALiBi, the mask's factor
    int32_t from;
    int32_t to; // from: nothing
};

// Rows (a query of one head each) that share one KV head, over the positions of one chunk. Softmax goes on from chunk
// to chunk. A score is the chain of fused multiply-adds over the channels from 0 on, and so is the sum of a channel of
// values over the positions.
struct PromptTask {
    const float *q; // [rows, dim_k], multiplied with the scale already
    int64_t rows;   // a multiple of kPromptRows
    int64_t dim_k;
    int64_t dim_v;
    const float *keys; // WidenTask's
    const float *values;
    const PromptRow *row; // [rows]
    float softcap;        // as AttentionTask's
    float *scores;        // scratch [kPromptRows, kAttentionChunk], 64-byte aligned
    float *top;           // in and out: [rows] largest score so far
    float *sum;           // [rows] of exp(score - largest)
    float *out;           // [rows, whole_panels(dim_v)] of that times v
};

struct AttentionKernels {
    void (*attend)(AttentionTask &task);
    void (*widen)(const WidenTask &task);
    void (*prompt)(const PromptTask &task);
    // whether `attend` and `prompt` are fast: the processor has fused multiply-add
    bool fused;
    // sums from the table, by look-up
    void (*score)(const ScoreTask &task);
    // popcount(plane & plus) - popcount(plane & minus)
    void (*popcount)(const ScoreTask &task);
    // out[i] = gamma[i] * (factor * sums[i] + offset). Returns the largest. n is a multiple of kLanes.
    float (*estimate)(const int16_t *sums, const float *gamma, int64_t n, float factor, float offset, float *out);
    // out[i] = largest over the heads h of estimates[h * stride + i] - top[h]. n is a multiple of kLanes.
    void (*nearness)(const float *estimates, int64_t stride, const float *top, int64_t heads, int64_t n, float *out);
    // how many of a[0 .. n) are >= limit; n is a multiple of kLanes
    int64_t (*count)(const float *a, int64_t n, float limit);
    // those as bits, 64 a word; n is a multiple of 64
    void (*above)(const float *a, int64_t n, float limit, uint64_t *words);
    // sum of exp(a[i]) over them
    float (*mass)(const float *a, int64_t n, float limit);
};

const AttentionKernels &attention_scalar();
void widen_scalar(const WidenTask &task);
void prompt_scalar(const PromptTask &task);

// Sums of weight times value by channel, over the n of the task's positions that index names; weights in its scratch,
// [heads, kAttentionChunk]. Where an instruction set's sum is not finite: what it multiplied with 0 may not have been.
void sum_values_by_channel(const AttentionTask &task, const int32_t *index, int64_t n);

// exp for x <= 88 with the same rounding everywhere: 2^n * p(r), r = x - n ln 2 in two parts, p of degree 6 (Cephes
// expf). Below -87 it is 0; NaN stays NaN.
struct ExpConstants {
    static constexpr float log2e = 1.44269504088896341F;
    static constexpr float ln2_high = 0.693359375F;
    static constexpr float ln2_low = -2.12194440e-4F;
    static constexpr float round = 12582912.0F; // 1.5 * 2^23: adding it rounds to an integer
    static constexpr float p0 = 1.9875691500E-4F;
    static constexpr float p1 = 1.3981999507E-3F;
    static constexpr float p2 = 8.3334519073E-3F;
    static constexpr float p3 = 4.1665795894E-2F;
    static constexpr float p4 = 1.6666665459E-1F;
    static constexpr float p5 = 5.0000001201E-1F;
    static constexpr float lowest = -87.0F;
    static constexpr float highest = 88.0F;
};

static inline float exp_defined(float x) {
    using C = ExpConstants;
    if (x < C::lowest) {
        return 0.0F;
    }
    const float in = x > C::highest ? C::highest : x;
    const float shifted = in * C::log2e + C::round;
    const float n = shifted - C::round;
    const float r = (in - n * C::ln2_high) - n * C::ln2_low;
    float p = C::p0;
    p = p * r + C::p1;
    p = p * r + C::p2;
    p = p * r + C::p3;
    p = p * r + C::p4;
    p = p * r + C::p5;
    p = (p * (r * r) + r) + 1.0F;
    // the low bits of `shifted` are n in two's complement
    const uint32_t exponent = std::bit_cast<uint32_t>(shifted) << 23;
    const float result = std::bit_cast<float>(std::bit_cast<uint32_t>(p) + exponent);
    return result + (x - x); // NaN and infinity give NaN
}

// tanh by that exp; absolute error below 1e-6.
static inline float tanh_defined(float x) {
    return 1.0F - 2.0F / (exp_defined(x + x) + 1.0F);
}

} // namespace seeddelta
