// Tiles of the hashed trellis on SSE2, for compute.hpp: values are looked up one by one and kept as 16-bit integers,
// two columns a PMADDWD. Include inside an instruction-set unit only.
#pragma once
#include <emmintrin.h>

#include "format/trellis.hpp"
#include "simd/kernel_table.hpp"

namespace seeddelta {
namespace {

struct Tile128 {
    static constexpr int64_t kTokens = 1;
    static constexpr int64_t kTiles = 1;

    // panel: int16 [columns / 2][16 rows][2 columns]
    static void decode(const seeddelta_ctx &ctx, int64_t tile, uint8_t *panel) {
        const uint16_t *words = ctx.codes + tile * ctx.words() * kTileRows;
        auto *out = reinterpret_cast<int16_t *>(panel);
        const auto per_step = static_cast<int64_t>(ctx.values_per_step);
        for (int64_t column = 0; column < ctx.steps() * per_step; ++column) {
            const int64_t bit = column / per_step * ctx.step_bits;
            const uint16_t *word = words + bit / 16 * kTileRows;
            const int shift = static_cast<int>(bit % 16);
            const __m128i multiplier = _mm_set1_epi16(static_cast<short>(ctx.multiplier[column % per_step]));
            alignas(16) uint16_t hash[kTileRows];
            for (int half = 0; half < 2; ++half) {
                __m128i state = _mm_loadu_si128(reinterpret_cast<const __m128i *>(word + 8 * half));
                if (shift != 0) {
                    const __m128i next =
                        _mm_loadu_si128(reinterpret_cast<const __m128i *>(word + kTileRows + 8 * half));
                    state = _mm_or_si128(_mm_sll_epi16(state, _mm_cvtsi32_si128(shift)),
                                         _mm_srl_epi16(next, _mm_cvtsi32_si128(16 - shift)));
                }
                _mm_store_si128(reinterpret_cast<__m128i *>(hash + 8 * half), _mm_mullo_epi16(state, multiplier));
            }
            int16_t *pair = out + column / 2 * 2 * kTileRows + column % 2;
            for (int64_t row = 0; row < kTileRows; ++row) {
                pair[2 * row] =
                    static_cast<int16_t>(kTrellisTable1[hash[row] >> 12] + kTrellisTable2[(hash[row] >> 8) & 15]);
            }
        }
    }

    static void multiply_panel(const seeddelta_ctx &ctx, const Activations &a, const uint8_t *panel, int64_t token,
                               int64_t count, float (*acc)[kTileRows]) {
        const int64_t columns = ctx.steps() * ctx.values_per_step;
        for (int64_t t = 0; t < count; ++t) {
            const int8_t *q = a.q + (token + t) * a.stride;
            const float *scale = a.scale + (token + t) * (a.stride / kGroup);
            __m128 total[4] = {_mm_setzero_ps(), _mm_setzero_ps(), _mm_setzero_ps(), _mm_setzero_ps()};
            for (int64_t start = 0; start < columns; start += kGroup) {
                const int64_t end = columns < start + kGroup ? columns : start + kGroup;
                __m128i sum[4] = {};
                for (int64_t column = start; column < end; column += 2) {
                    const auto pair = static_cast<uint32_t>(static_cast<uint16_t>(q[column])) |
                                      static_cast<uint32_t>(static_cast<uint16_t>(q[column + 1])) << 16;
                    const __m128i x = _mm_set1_epi32(static_cast<int>(pair));
                    const auto *v = reinterpret_cast<const __m128i *>(panel) + column / 2 * 4;
                    for (int i = 0; i < 4; ++i) {
                        sum[i] = _mm_add_epi32(sum[i], _mm_madd_epi16(_mm_loadu_si128(v + i), x));
                    }
                }
                const __m128 d = _mm_set1_ps(scale[start / kGroup]);
                for (int i = 0; i < 4; ++i) {
                    total[i] = _mm_add_ps(total[i], _mm_mul_ps(_mm_cvtepi32_ps(sum[i]), d));
                }
            }
            for (int i = 0; i < 4; ++i) {
                _mm_store_ps(acc[t] + 4 * i, total[i]);
            }
        }
    }

    static void multiply_codes(const seeddelta_ctx &ctx, int64_t tile, int64_t, const Activations &a, uint8_t *panel,
                               float (*acc)[kTileRows]) {
        decode(ctx, tile, panel);
        multiply_panel(ctx, a, panel, 0, 1, acc);
    }

    static int32_t dot64(const uint8_t *values, const int8_t *q) {
        __m128i sum = _mm_setzero_si128();
        for (int i = 0; i < 4; ++i) {
            const __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i *>(values) + i);
            const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i *>(q) + i);
            const __m128i sign = _mm_cmpgt_epi8(_mm_setzero_si128(), x);
            sum = _mm_add_epi32(sum,
                                _mm_madd_epi16(_mm_unpacklo_epi8(v, _mm_setzero_si128()), _mm_unpacklo_epi8(x, sign)));
            sum = _mm_add_epi32(sum,
                                _mm_madd_epi16(_mm_unpackhi_epi8(v, _mm_setzero_si128()), _mm_unpackhi_epi8(x, sign)));
        }
        sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4E));
        sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xB1));
        return _mm_cvtsi128_si32(sum);
    }
};

} // namespace
} // namespace seeddelta
