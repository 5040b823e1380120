// Activations of several tokens as products of byte lanes read them. Include inside an instruction-set unit only.
#pragma once
#include "format/lanes.hpp"
#include "simd/inline.hpp"
#include "simd/kernel_table.hpp"

namespace seeddelta {
namespace {

// Up to eight tokens, four columns of one beside those of the next, and what is summed so far.
struct LaneBlock {
    static constexpr int64_t kTokens = kLaneBlock;
    static constexpr int64_t kQuad = kLaneWalks; // columns of a register's 32-bit lane
    static constexpr int64_t kGroupBytes = kGroup * kTokens;

    uint8_t *x;    // [groups, kGroup / kQuad, kTokens, kQuad]
    float *scale;  // [groups, kTokens]
    int32_t *bias; // [groups, kTokens], shared_bias
    float *total;  // [kTokens, kTileRows]

    // Number `number` of those in a thread's scratch, behind a decoded panel.
    static LaneBlock of(uint8_t *scratch, int64_t groups, int64_t number) {
        uint8_t *x = scratch + kLanePanelBytes + number * lane_block_bytes(groups);
        uint8_t *scale = x + groups * kGroupBytes;
        uint8_t *bias = scale + groups * kTokens * 4;
        uint8_t *total = bias + groups * kTokens * 4;
        return {x, reinterpret_cast<float *>(scale), reinterpret_cast<int32_t *>(bias),
                reinterpret_cast<float *>(total)};
    }

    // Tokens from `first` on; those that are none are zeros.
    void pack(const Activations &a, int64_t first) const {
        const int64_t groups = a.stride / kGroup;
        for (int64_t n = 0; n < kTokens; ++n) {
            const int64_t token = first + n;
            if (token >= a.n_tokens) {
                put(n, groups, [](int64_t, int64_t) SEEDDELTA_INLINE_LAMBDA { return 0U; });
                continue;
            }
            const int8_t *q = a.q + token * a.stride;
            put(n, groups, [&](int64_t g, int64_t quad) SEEDDELTA_INLINE_LAMBDA {
                uint32_t four;
                __builtin_memcpy(&four, q + g * kGroup + quad * kQuad, sizeof(four));
                return four;
            });
            for (int64_t g = 0; g < groups; ++g) {
                scale[g * kTokens + n] = a.scale[token * groups + g];
                bias[g * kTokens + n] = a.shared_bias(token, g);
            }
        }
    }

private:
    // Token n: what fours(group, quad) returns.
    template <class Fours>
    void put(int64_t n, int64_t groups, Fours &&fours) const {
        for (int64_t g = 0; g < groups; ++g) {
            scale[g * kTokens + n] = 0.0F;
            bias[g * kTokens + n] = 0;
            for (int64_t quad = 0; quad < kGroup / kQuad; ++quad) {
                const uint32_t four = fours(g, quad);
                __builtin_memcpy(x + g * kGroupBytes + (quad * kTokens + n) * kQuad, &four, sizeof(four));
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
    const LaneBlock &block;
    const int8_t *x;

    SEEDDELTA_INLINE explicit BlockInputs(const LaneBlock &b) : block(b), x(reinterpret_cast<const int8_t *>(b.x)) {}
    SEEDDELTA_INLINE const int8_t *at(int n, int column) const {
        return x + column * LaneBlock::kTokens + n * LaneBlock::kQuad;
    }
    SEEDDELTA_INLINE void advance(int64_t columns) { x += columns * LaneBlock::kTokens; }
    SEEDDELTA_INLINE int32_t bias(int n, int64_t group) const { return block.bias[group * LaneBlock::kTokens + n]; }
    SEEDDELTA_INLINE float scale(int n, int64_t group) const { return block.scale[group * LaneBlock::kTokens + n]; }
};

} // namespace
} // namespace seeddelta
