// Scheme proc_sparse for any instruction set; the definition is in residual/proc_sparse.cpp. Include inside an
// instruction-set unit only. A row's kept blocks and their hashed values are made once for all tokens; products of int8
// are summed by pairs of columns, so that 32 columns give the row's 16 partial sums.
#pragma once
#include <xsimd/xsimd.hpp>

#include "base/prng_block.hpp"
#include "kernels/kernel_table.hpp"
#include "kernels/simd/inline.hpp"
#include "kernels/simd/residual.hpp"
#include "residual/proc_sparse.hpp"

namespace seeddelta {
namespace {

// Lane i: a[2i] b[2i] + a[2i+1] b[2i+1].
template <class Arch>
SEEDDELTA_INLINE xsimd::batch<int32_t, Arch> pair_products(const int8_t *a, const int8_t *b) {
#if defined(__AVX512BW__)
    const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(a));
    const __m256i y = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(b));
    return _mm512_madd_epi16(_mm512_cvtepi8_epi16(x), _mm512_cvtepi8_epi16(y));
#elif defined(__AVX2__)
    const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i *>(a));
    const __m128i y = _mm_loadu_si128(reinterpret_cast<const __m128i *>(b));
    return _mm256_madd_epi16(_mm256_cvtepi8_epi16(x), _mm256_cvtepi8_epi16(y));
#elif defined(__SSE2__)
    const __m128i x = _mm_loadl_epi64(reinterpret_cast<const __m128i *>(a));
    const __m128i y = _mm_loadl_epi64(reinterpret_cast<const __m128i *>(b));
    return _mm_madd_epi16(_mm_srai_epi16(_mm_unpacklo_epi8(x, x), 8), _mm_srai_epi16(_mm_unpacklo_epi8(y, y), 8));
#else
    return vpaddlq_s16(vmull_s8(vld1_s8(a), vld1_s8(b)));
#endif
}

template <class Arch>
SEEDDELTA_INLINE xsimd::batch<uint64_t, Arch> mix_batch(xsimd::batch<uint64_t, Arch> z) {
    using U = xsimd::batch<uint64_t, Arch>;
    z = (z ^ (z >> 30)) * U(0xBF58476D1CE4E5B9ULL);
    z = (z ^ (z >> 27)) * U(0x94D049BB133111EBULL);
    return z ^ (z >> 31);
}

// words[i] = mix(words[i]); n is rounded up to whole registers.
template <class Arch>
SEEDDELTA_INLINE void mix_all(uint64_t *words, int64_t n) {
    using U = xsimd::batch<uint64_t, Arch>;
    for (int64_t i = 0; i < n; i += static_cast<int64_t>(U::size)) {
        mix_batch<Arch>(U::load_aligned(words + i)).store_aligned(words + i);
    }
}

// The base's values in the kept blocks, one after another, as int8 in the memory of words. keys is scratch; both are
// 64-byte aligned and have room for whole registers.
template <class Arch>
inline void proc_hash(const seeddelta_ctx &ctx, int64_t row, const int32_t *columns, uint64_t *keys, uint64_t *words) {
    const int64_t kept = ctx.residual_size;
    const int64_t per_block = ctx.residual_block / 8;
    const uint64_t row_key = splitmix64_mix(ctx.base_seed + kGoldenGamma * (static_cast<uint64_t>(row) + 1));
    for (int64_t e = 0; e < kept; ++e) {
        const auto number = static_cast<uint64_t>(columns[e] / static_cast<int32_t>(ctx.residual_block));
        keys[e] = row_key + kGoldenGamma * (number + 1);
    }
    mix_all<Arch>(keys, kept);
    for (int64_t e = 0; e < kept; ++e) {
        for (int64_t i = 0; i < per_block; ++i) {
            words[e * per_block + i] = keys[e] + kGoldenGamma * (static_cast<uint64_t>(i) + 1);
        }
    }
    mix_all<Arch>(words, kept * per_block);
    for (int64_t i = 0; i < kept * per_block; ++i) {
        // 2 (b & 63) - 63 in each of eight bytes: plus 64 it is 1 .. 127, and the high bit keeps borrows inside
        const uint64_t biased = ((words[i] & 0x3F3F3F3F3F3F3F3FULL) << 1) | 0x8181818181818181ULL;
        words[i] = (biased - 0x4040404040404040ULL) ^ 0x8080808080808080ULL;
    }
}

// sums[t] += the products of a row's kept blocks with token t, scaled by the activations' groups.
template <class Arch, int Tokens>
SEEDDELTA_INLINE void proc_products(const seeddelta_ctx &ctx, const int8_t *values, const int32_t *columns,
                                    const int8_t *q, const float *scale, int64_t stride, PartialSums<Arch> *sums) {
    using F = xsimd::batch<float, Arch>;
    constexpr int64_t step = 2 * PartialSums<Arch>::kLanes; // columns of a register
    const int64_t block = ctx.residual_block;
    for (int64_t e = 0; e < ctx.residual_size; ++e, values += block) {
        const int64_t column = columns[e];
        for (int t = 0; t < Tokens; ++t) {
            const F d(scale[t * (stride / kGroup) + column / kGroup]);
            for (int64_t r = 0; r < PartialSums<Arch>::kRegisters; ++r) {
                const int8_t *x = q + t * stride + column + r * step;
                auto sum = pair_products<Arch>(values + r * step, x);
                if (block == 64) {
                    sum = sum + pair_products<Arch>(values + r * step + 32, x + 32);
                }
                sums[t].sum[r] = sums[t].sum[r] + xsimd::to_float(sum) * d;
            }
        }
    }
}

template <class Arch, int Tokens>
inline bool proc_tokens(const seeddelta_ctx &ctx, const Activations &a, int64_t row, const int8_t *hashed,
                        const int32_t *columns, float row_scale, int64_t token, float *y, int64_t y_stride) {
    const int8_t *values = ctx.residual_vals_i8 + row * ctx.residual_size * ctx.residual_block;
    const int8_t *q = a.q + token * a.stride;
    const float *scale = a.scale + token * (a.stride / kGroup);
    PartialSums<Arch> base[Tokens];
    PartialSums<Arch> delta[Tokens];
    proc_products<Arch, Tokens>(ctx, values, columns, q, scale, a.stride, delta);
    if (hashed != nullptr) {
        proc_products<Arch, Tokens>(ctx, hashed, columns, q, scale, a.stride, base);
    }
    const float value_scale = half_to_float(ctx.residual_scale[row]);
    bool finite = true;
    for (int t = 0; t < Tokens; ++t) {
        const float residual = delta[t].reduce() * value_scale;
        const float out = row_scale * (base[t].reduce() * ctx.base_scale + residual);
        finite &= (__builtin_bit_cast(uint32_t, out) & 0x7F800000U) != 0x7F800000U;
        y[(token + t) * y_stride + row] = out;
    }
    return finite;
}

// The rows of one tile for all tokens. Returns false when an output is NaN or infinite.
template <class Arch>
inline bool proc_tile(const seeddelta_ctx &ctx, const Activations &a, int64_t row0, int64_t rows, const float *row_scale,
                      uint8_t *panel, float *y, int64_t y_stride) {
    constexpr int kTogether = 4; // tokens of a prompt
    const int64_t bytes = (ctx.n_in + 2 * kGroup) / 64 * 64;
    auto *words = reinterpret_cast<uint64_t *>(panel); // n_in bytes, rounded up to a block
    auto *keys = reinterpret_cast<uint64_t *>(panel + bytes);
    auto *columns = reinterpret_cast<int32_t *>(panel + 2 * bytes);
    bool finite = true;
    for (int64_t row = row0; row < row0 + rows; ++row) {
        for_kept_blocks(ctx, row, [&](int64_t entry, int64_t number) {
            columns[entry] = static_cast<int32_t>(number * ctx.residual_block);
        });
        const int8_t *hashed = nullptr;
        if (ctx.base == BaseKind::prng_block) {
            proc_hash<Arch>(ctx, row, columns, keys, words);
            hashed = reinterpret_cast<const int8_t *>(words);
        }
        int64_t token = 0;
        for (; token + kTogether <= a.n_tokens; token += kTogether) {
            finite &= proc_tokens<Arch, kTogether>(ctx, a, row, hashed, columns, row_scale[row - row0], token, y, y_stride);
        }
        for (; token < a.n_tokens; ++token) {
            finite &= proc_tokens<Arch, 1>(ctx, a, row, hashed, columns, row_scale[row - row0], token, y, y_stride);
        }
    }
    return finite;
}

} // namespace
} // namespace seeddelta
