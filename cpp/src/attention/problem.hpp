// What one operation of attention computes: queries over cached keys and values.
#pragma once
#include <bit>
#include <cstdint>

#include "format/float16.hpp"
#include "simd/attention_kernels.hpp"

namespace seeddelta {

inline constexpr int64_t kFewQueries = 16; // of a stream; more are a prompt

// The attention of n_query tokens in each of n_stream caches of equal size. Heads [h * n_head / n_kv_head, …) share KV
// head h. Strides of keys and values are in bytes, those of queries, masks and results in elements. Tokens are
// independent of each other: each has a mask of its own, and gets the bits that it would get alone.
struct AttentionProblem {
    int64_t n_head = 0;
    int64_t n_kv_head = 0;
    int64_t dim_k = 0;
    int64_t dim_v = 0;
    int64_t n_kv = 0; // positions
    int64_t n_query = 1;
    int64_t n_stream = 1;
    const float *q = nullptr;                        // rows of dim_k floats
    int64_t q_stride = 0, q_query = 0, q_stream = 0; // between heads, between queries, between streams
    CacheType k_type = CacheType::f16;
    CacheType v_type = CacheType::f16;
    const uint8_t *k = nullptr;
    const uint8_t *v = nullptr;
    int64_t k_row = 0, k_head = 0, k_stream = 0; // between positions, between KV heads, between streams
    int64_t v_row = 0, v_head = 0, v_stream = 0;
    bool v_by_channel = false;      // v_row is between channels, whose positions lie side by side; float16
    const uint16_t *mask = nullptr; // float16 [n_kv] added to scores, -inf: not visible
    const float *mask32 = nullptr;  // the same in float32; both null: all are visible
    int64_t mask_query = 0, mask_stream = 0;
    const float *sinks = nullptr; // [n_head] scores that take part in the softmax without a value; null: none
    float scale = 1.0F;
    float max_bias = 0.0F; // of ALiBi; 0: none
    float softcap = 0.0F;  // 0: none
    float *out = nullptr;  // rows of dim_v floats
    int64_t out_stride = 0, out_query = 0, out_stream = 0;

    int64_t group() const { return n_head / n_kv_head; }
    int64_t tokens() const { return n_query * n_stream; }
    bool is_prompt() const { return n_query > kFewQueries; }
    int64_t chunks() const { return (n_kv + kAttentionChunk - 1) / kAttentionChunk; }
    int64_t padded() const { return chunks() * kAttentionChunk; }
    // Number of a head of a query among the rows of a chunk: those of one KV head lie side by side.
    int64_t row(int64_t head, int64_t i) const { return (head / group() * n_query + i) * group() + head % group(); }
    // Floats of the partial results of all chunks of one stream: [chunks, n_kv_head, n_query, group, 2 + dim_v].
    int64_t partial_floats() const { return chunks() * n_query * n_head * (2 + dim_v); }
    bool masked() const { return mask != nullptr || mask32 != nullptr; }
    // The queries of one stream.
    AttentionProblem stream(int64_t s) const {
        AttentionProblem one = *this;
        one.n_stream = 1;
        one.q += s * q_stream;
        one.k += s * k_stream;
        one.v += s * v_stream;
        one.out += s * out_stream;
        one.move_mask(s * mask_stream);
        return one;
    }
    // One query of the first stream.
    AttentionProblem query(int64_t i) const {
        AttentionProblem one = *this;
        one.n_query = 1;
        one.q += i * q_query;
        one.out += i * out_query;
        one.move_mask(i * mask_query);
        return one;
    }
    // What a mask has for a position, as bits. Of float16 they are the upper ones: a sign is where it is in float32.
    uint32_t mask_bits(int64_t row) const {
        return mask != nullptr ? uint32_t{mask[row]} << 16 : std::bit_cast<uint32_t>(mask32[row]);
    }
    float mask_value(int64_t row) const { return mask != nullptr ? half_to_float(mask[row]) : mask32[row]; }
    bool hidden(int64_t row) const {
        return masked() && mask_bits(row) == (mask != nullptr ? 0xFC000000U : 0xFF800000U);
    }
    void key(int64_t kv_head, int64_t row, float *out) const {
        widen_row(k_type, k + kv_head * k_head + row * k_row, dim_k, out);
    }

private:
    void move_mask(int64_t n) {
        mask = mask == nullptr ? nullptr : mask + n;
        mask32 = mask32 == nullptr ? nullptr : mask32 + n;
    }
};

// Bits of the 128 positions of a chunk that the mask of the first query allows.
void visible_bits(const AttentionProblem &p, int64_t chunk, uint64_t bits[2]);
// Whether queries a and b of the first stream have the same mask in a chunk.
bool same_mask(const AttentionProblem &p, int64_t a, int64_t b, int64_t chunk);

} // namespace seeddelta
