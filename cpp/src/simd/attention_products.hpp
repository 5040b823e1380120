// Products of a query with cached keys, and rows widened, for any xsimd architecture; `Ops` as in attention.hpp.
// Include inside an instruction-set unit only.
#pragma once
#include "simd/attention_lanes.hpp"

namespace seeddelta {
namespace {

// Channels d, d + 1, … of a row, as many as a register has floats.
template <class Ops, CacheType kType>
SEEDDELTA_INLINE typename Ops::F channels(const uint8_t *row, int64_t d) {
    if constexpr (kType == CacheType::f16) {
        return Ops::half(reinterpret_cast<const uint16_t *>(row) + d);
    } else if constexpr (kType == CacheType::bf16) {
        alignas(64) uint32_t wide[Ops::F::size];
        for (size_t i = 0; i < Ops::F::size; ++i) {
            wide[i] = uint32_t{reinterpret_cast<const uint16_t *>(row)[d + static_cast<int64_t>(i)]} << 16;
        }
        return Ops::F::load_aligned(reinterpret_cast<const float *>(wide));
    } else {
        constexpr bool kBytes = kType == CacheType::q8_0;
        const uint8_t *block = row + d / kCacheBlock * (kBytes ? kQ8Bytes : kQ4Bytes);
        const typename Ops::F scale(Ops::half_one(*reinterpret_cast<const uint16_t *>(block)));
        if constexpr (kBytes) {
            return Ops::bytes(reinterpret_cast<const int8_t *>(block) + 2 + d % kCacheBlock) * scale;
        } else {
            constexpr int64_t kHalf = kCacheBlock / 2;
            const int shift = d % kCacheBlock < kHalf ? 0 : 4;
            int8_t fours[16];
            for (size_t i = 0; i < Ops::F::size; ++i) {
                const int both = block[2 + d % kHalf + static_cast<int64_t>(i)];
                fours[i] = static_cast<int8_t>((both >> shift & 15) - 8);
            }
            return Ops::bytes(fours) * scale;
        }
    }
}

SEEDDELTA_INLINE void prefetch(const uint8_t *row, int64_t bytes) {
    for (int64_t at = 0; at < bytes; at += 64) {
        __builtin_prefetch(row + at);
    }
}

// Memory that is used when this chunk is done: it is read while keys and while values are computed with, one KV head's
// share after the other in the order of addresses, as the processor's own prefetcher likes it.
SEEDDELTA_INLINE void prefetch_next(const uint8_t *row, int64_t bytes) {
    for (int64_t at = 0; at < bytes; at += 64) {
        __builtin_prefetch(row + at, 0, 2);
    }
}

// Room in the scratch for four rows of floats.
SEEDDELTA_INLINE float *four_rows(const AttentionTask &t) {
    return t.scratch + 2 * t.heads * kAttentionChunk;
}

// Products of x[n] with four rows; n is a multiple of kLanes.
template <class Arch, class Ops>
SEEDDELTA_INLINE void four_products(const float *x, const float *rows, int64_t stride, int64_t n, float *out) {
    using F = xsimd::batch<float, Arch>;
    constexpr int64_t size = F::size;
    Lanes<Arch> a(0.0F), b(0.0F), c(0.0F), d(0.0F);
    for (int64_t at = 0; at < n; at += kLanes) {
        for (int r = 0; r < Lanes<Arch>::kCount; ++r) {
            const float *row = rows + at + r * size;
            const F one = F::load_unaligned(x + at + r * size);
            a.r[r] = Ops::fused(one, F::load_unaligned(row), a.r[r]);
            b.r[r] = Ops::fused(one, F::load_unaligned(row + stride), b.r[r]);
            c.r[r] = Ops::fused(one, F::load_unaligned(row + 2 * stride), c.r[r]);
            d.r[r] = Ops::fused(one, F::load_unaligned(row + 3 * stride), d.r[r]);
        }
    }
    Ops::sum4(a.r, b.r, c.r, d.r, out);
}

// The same with four rows in as many registers each, before the sums are folded.
template <class Arch, class Ops, int kRegisters>
SEEDDELTA_INLINE void held_products(const float *x, const xsimd::batch<float, Arch> *rows,
                                    xsimd::batch<float, Arch> *sum) {
    using F = xsimd::batch<float, Arch>;
    constexpr int kCount = Lanes<Arch>::kCount;
    unrolled<4 * kCount>([&](int i) SEEDDELTA_INLINE_LAMBDA { sum[i] = F(0.0F); });
    unrolled<kRegisters>([&](int r) SEEDDELTA_INLINE_LAMBDA {
        const F one = F::load_unaligned(x + r * static_cast<int>(F::size));
        unrolled<4>([&](int key) SEEDDELTA_INLINE_LAMBDA {
            F &lane = sum[key * kCount + r % kCount];
            lane = Ops::fused(one, rows[key * kRegisters + r], lane);
        });
    });
}

} // namespace
} // namespace seeddelta
