// Activations of several tokens as products of byte lanes read them. Include inside an instruction-set unit only.
#pragma once
#include <xsimd/xsimd.hpp>

#include "format/lanes.hpp"
#include "simd/inline.hpp"
#include "simd/kernel_table.hpp"

namespace seeddelta {
namespace {

// Up to eight tokens, four columns of one beside those of the next, and what is summed so far.
struct TokenBatch {
    static constexpr int64_t kTokens = kTokenBatch;
    static constexpr int64_t kDotGroup = kStreams; // columns of a register's 32-bit lane
    static constexpr int64_t kGroupBytes = kGroup * kTokens;

    uint8_t *x;    // [groups, kGroup / kDotGroup, kTokens, kDotGroup]
    float *scale;  // [groups, kTokens]
    int32_t *bias; // [groups, kTokens], shared_bias
    float *total;  // [kTokens, kTileRows]

    // Number `number` of those in a thread's scratch, behind a decoded panel.
    static TokenBatch of(uint8_t *scratch, int64_t groups, int64_t number) {
        uint8_t *x = scratch + kLanePanelBytes + number * token_batch_bytes(groups);
        uint8_t *scale = x + groups * kGroupBytes;
        uint8_t *bias = scale + groups * kTokens * 4;
        uint8_t *total = bias + groups * kTokens * 4;
        return {x, reinterpret_cast<float *>(scale), reinterpret_cast<int32_t *>(bias),
                reinterpret_cast<float *>(total)};
    }

    // Tokens from `first` on; zeros up to a multiple of four, and no more are read.
    void pack(const Activations &a, int64_t first) const {
        using Four = typename xsimd::make_sized_batch<uint32_t, 4>::type; // tokens or dot groups
        static constexpr int8_t kNone[kGroup] = {};
        const int64_t groups = a.stride / kGroup;
        for (int64_t n = 0; n < kTokens && first + n < a.n_tokens; n += 4) {
            const int8_t *q[4];
            int64_t step[4];
            for (int64_t i = 0; i < 4; ++i) {
                const int64_t token = first + n + i;
                const bool there = token < a.n_tokens;
                q[i] = there ? a.q + token * a.stride : kNone;
                step[i] = there ? kGroup : 0;
                for (int64_t g = 0; g < groups; ++g) {
                    scale[g * kTokens + n + i] = there ? a.scale[token * groups + g] : 0.0F;
                    bias[g * kTokens + n + i] = there ? a.shared_bias(token, g) : 0;
                }
            }
            for (uint8_t *out = x + n * kDotGroup; out < x + groups * kGroupBytes; out += kGroupBytes) {
                for (int64_t dot_group = 0; dot_group < kGroup / kDotGroup; dot_group += 4) {
                    const auto load = [&](int i) SEEDDELTA_INLINE_LAMBDA {
                        return Four::load_unaligned(reinterpret_cast<const uint32_t *>(q[i] + dot_group * kDotGroup));
                    };
                    const auto store = [&](int i, Four v) SEEDDELTA_INLINE_LAMBDA {
                        v.store_unaligned(reinterpret_cast<uint32_t *>(out + (dot_group + i) * kTokens * kDotGroup));
                    };
                    const Four even[2] = {xsimd::zip_lo(load(0), load(2)), xsimd::zip_hi(load(0), load(2))};
                    const Four odd[2] = {xsimd::zip_lo(load(1), load(3)), xsimd::zip_hi(load(1), load(3))};
                    for (int half = 0; half < 2; ++half) {
                        store(2 * half, xsimd::zip_lo(even[half], odd[half]));
                        store(2 * half + 1, xsimd::zip_hi(even[half], odd[half]));
                    }
                }
                for (int i = 0; i < 4; ++i) {
                    q[i] += step[i];
                }
            }
        }
    }
};

// Where a product of N tokens finds four columns of each: `at` counts columns from the place that `advance` moves.
// In rows; where there are fewer tokens, the last one stands for the rest.
template <int N>
struct RowInputs {
    const Activations &a;
    const int8_t *q[N];

    SEEDDELTA_INLINE explicit RowInputs(const Activations &all) : a(all) {
        unrolled<N>([&](int n) SEEDDELTA_INLINE_LAMBDA { q[n] = a.q + token(n) * a.stride; });
    }
    SEEDDELTA_INLINE int64_t token(int64_t n) const { return n < a.n_tokens ? n : a.n_tokens - 1; }
    SEEDDELTA_INLINE const int8_t *at(int n, int column) const { return q[n] + column; }
    SEEDDELTA_INLINE void advance(int64_t columns) {
        unrolled<N>([&](int n) SEEDDELTA_INLINE_LAMBDA { q[n] += columns; });
    }
    SEEDDELTA_INLINE int32_t bias(int n, int64_t group) const { return a.shared_bias(token(n), group); }
    SEEDDELTA_INLINE float scale(int n, int64_t group) const { return a.scale[token(n) * (a.stride / kGroup) + group]; }
};

// In a block: one address for all, and one stream from the cache.
struct BlockInputs {
    const TokenBatch &block;
    const int8_t *x;

    SEEDDELTA_INLINE explicit BlockInputs(const TokenBatch &b) : block(b), x(reinterpret_cast<const int8_t *>(b.x)) {}
    SEEDDELTA_INLINE const int8_t *at(int n, int column) const {
        return x + column * TokenBatch::kTokens + n * TokenBatch::kDotGroup;
    }
    SEEDDELTA_INLINE void advance(int64_t columns) { x += columns * TokenBatch::kTokens; }
    SEEDDELTA_INLINE int32_t bias(int n, int64_t group) const { return block.bias[group * TokenBatch::kTokens + n]; }
    SEEDDELTA_INLINE float scale(int n, int64_t group) const { return scales(group)[n]; }
    SEEDDELTA_INLINE const float *scales(int64_t group) const { return block.scale + group * TokenBatch::kTokens; }
};

} // namespace
} // namespace seeddelta
