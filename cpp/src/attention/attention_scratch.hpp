// What a thread of an attention works with, and the few functions that exact and packed attention share.
#pragma once
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "attention/attention.hpp"
#include "format/float16.hpp"

namespace seeddelta {

inline constexpr float kNone = -std::numeric_limits<float>::infinity();

// Slopes of ALiBi as llama.cpp has them (ggml, ops.cpp): powers of two roots of 2^-max_bias.
inline float slope_of(const AttentionProblem &p, int64_t head) {
    if (p.max_bias <= 0.0F) {
        return 1.0F;
    }
    const auto power = static_cast<int64_t>(1) << static_cast<int64_t>(std::floor(std::log2(p.n_head)));
    const float base = std::pow(2.0F, (head < power ? -p.max_bias : -p.max_bias / 2.0F) / static_cast<float>(power));
    return std::pow(base, static_cast<float>(head < power ? head + 1 : 2 * (head - power) + 1));
}

// Positions of the bits, and what the mask adds to them. Returns how many; `biased` says whether any is not zero.
inline int64_t gather(const AttentionProblem &p, int64_t chunk, const uint64_t bits[2], int32_t *rows, float *bias,
                      bool &biased) {
    int64_t n = 0;
    biased = false;
    for (int64_t half = 0; half < 2; ++half) {
        const auto first = static_cast<int32_t>(chunk * kAttentionChunk + 64 * half);
        if (bits[half] == ~uint64_t{0}) {
            for (int32_t i = 0; i < 64; ++i) {
                rows[n + i] = first + i;
            }
            n += 64;
            continue;
        }
        for (uint64_t word = bits[half]; word != 0; word &= word - 1) {
            rows[n++] = first + static_cast<int32_t>(std::countr_zero(word));
        }
    }
    if (p.masked()) {
        uint32_t any = 0;
        for (int64_t i = 0; i < n; ++i) {
            any |= 2 * p.mask_bits(rows[i]); // without the sign
        }
        biased = any != 0;
        for (int64_t i = 0; biased && i < n; ++i) {
            bias[i] = p.mask_value(rows[i]);
        }
    }
    return n;
}

// A head of a query, scaled as the kernels take it: [dim_k].
inline void scaled_query(const AttentionProblem &p, int64_t head, int64_t query, float *out) {
    const float scale = p.softcap != 0.0F ? p.scale / p.softcap : p.scale;
    const float *from = p.q + query * p.q_query + head * p.q_stride;
    for (int64_t d = 0; d < p.dim_k; ++d) {
        out[d] = from[d] * scale;
    }
}

// Cuts aligned arrays out of a stretch of memory; of none, it only counts the bytes.
class Carver {
public:
    explicit Carver(uint8_t *base) : base_(base) {}
    template <class T>
    void take(T *&pointer, int64_t n) {
        pointer = base_ == nullptr ? nullptr : reinterpret_cast<T *>(base_ + used_);
        used_ += (n * static_cast<int64_t>(sizeof(T)) + 63) / 64 * 64;
    }
    int64_t used() const { return used_; }

private:
    uint8_t *base_;
    int64_t used_ = 0;
};

// Queries with the same mask whose heads a kernel takes at once: keys are widened once for all of them.
inline int64_t queries_at_once(const AttentionProblem &p) {
    constexpr int64_t kHeads = 32; // whose weights the first cache holds
    return std::clamp<int64_t>(kHeads / p.group(), 1, p.n_query);
}

// A query as the look-up of key bits needs it: six bits a channel, or with popcount its sign.
struct QueryBits {
    float step;  // of the quantized query
    int32_t sum; // of it
};

// Carved out of the thread's scratch.
struct Attention::Scratch {
    float *q;         // [n_kv_head, n_query, group, dim_k] scaled
    float *slope;     // [n_kv_head, n_query, group]
    float *floats;    // of the kernel
    float *near;      // [padded positions]
    float *given;     // [group, kAttentionChunk]
    float *bias;      // [kAttentionChunk]
    float *top;       // [group]
    uint64_t *keep;   // [chunks, 2]
    int32_t *rows;    // [kAttentionChunk]
    int16_t *sums;    // [kAttentionChunk]
    int8_t *table;    // [group, dim_k / 4, 16]
    uint8_t *plus;    // [group, dim_k / 8]
    uint8_t *minus;   // [group, dim_k / 8]
    QueryBits *query; // [group]
    float *out;       // [dim_v]
    int64_t table_of = -1;
    int64_t keep_of = -1;

    Scratch() = default; // to be counted
    explicit Scratch(const AttentionProblem &p) { carve(p, thread_scratch(carve(p, nullptr))); }

    // The queries of one stream; p has that one alone.
    void take_queries(const AttentionProblem &p) {
        for (int64_t head = 0; head < p.n_head; ++head) {
            const float own = slope_of(p, head);
            for (int64_t query = 0; query < p.n_query; ++query) {
                const int64_t at = p.row(head, query);
                slope[at] = own;
                scaled_query(p, head, query, q + at * p.dim_k);
            }
        }
    }

    // Returns the bytes that it takes; with null it only counts them.
    int64_t carve(const AttentionProblem &p, uint8_t *base) {
        Carver carver(base);
        const auto take = [&](auto *&pointer, int64_t n) { carver.take(pointer, n); };
        take(q, p.n_query * p.n_head * p.dim_k);
        take(slope, p.n_query * p.n_head);
        take(floats, attention_scratch_floats(p.group() * queries_at_once(p), p.dim_k));
        take(near, p.padded());
        take(given, p.group() * kAttentionChunk);
        take(bias, kAttentionChunk);
        take(top, p.group());
        take(keep, 2 * p.chunks());
        take(rows, kAttentionChunk);
        take(sums, kAttentionChunk);
        take(table, p.group() * p.dim_k * 4);
        take(plus, p.group() * p.dim_k / 8);
        take(minus, p.group() * p.dim_k / 8);
        take(query, p.group());
        take(out, p.dim_v);
        return carver.used();
    }
};

} // namespace seeddelta
