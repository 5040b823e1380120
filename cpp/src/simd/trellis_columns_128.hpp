// Column layout in 128-bit registers without byte look-up: values one by one, as 16-bit integers, two units a PMADDWD.
// Include inside an instruction-set unit only.
#pragma once
#include <emmintrin.h>

#include "simd/trellis_columns.hpp"

namespace seeddelta {
namespace {

struct Columns128 {
    static constexpr int64_t kUnits = 2;
    static constexpr bool kPairs = false;
    static constexpr int kBytes = 2; // a value in the panel
    struct Tables {
        uint16_t multiplier[2];
        explicit Tables(const uint16_t *m) : multiplier{m[0], m[1]} {}
    };

    // Values of 64 outputs of one unit, every other one of out.
    template <int K, int V, int Phase>
    static void unit_values(const uint16_t *words, const Tables &c, int16_t *out) {
        for (int i = 0; i < 4; ++i) {
            const int bit = (Phase * (4 / V) + i / V) * K;
            const uint16_t *word = words + bit / 16 * kTileRows;
            const __m128i multiplier = _mm_set1_epi16(static_cast<short>(c.multiplier[i % V]));
            alignas(16) uint16_t hash[kTileRows];
            for (int half = 0; half < 2; ++half) {
                __m128i state = _mm_loadu_si128(reinterpret_cast<const __m128i *>(word + 8 * half));
                if (bit % 16 != 0) {
                    const __m128i next =
                        _mm_loadu_si128(reinterpret_cast<const __m128i *>(word + kTileRows + 8 * half));
                    state = _mm_or_si128(_mm_sll_epi16(state, _mm_cvtsi32_si128(bit % 16)),
                                         _mm_srl_epi16(next, _mm_cvtsi32_si128(16 - bit % 16)));
                }
                _mm_store_si128(reinterpret_cast<__m128i *>(hash + 8 * half), _mm_mullo_epi16(state, multiplier));
            }
            for (int64_t lane = 0; lane < kTileRows; ++lane) {
                out[2 * (i * kTileRows + lane)] =
                    static_cast<int16_t>(kTrellisTable1[hash[lane] >> 12] + kTrellisTable2[(hash[lane] >> 8) & 15]);
            }
        }
    }

    // panel: int16 [pairs of units][64 outputs][2 units]
    template <int K, int V, bool Narrow, int Phase>
    static void decode(const SliceUnits &a, int64_t count, const Tables &c, uint8_t *panel) {
        auto *out = reinterpret_cast<int16_t *>(panel);
        for (int64_t u = 0; u < count; ++u) {
            unit_values<K, V, Phase>(a.unit[u] + a.offset, c, out + u / 2 * 2 * kOutputSlice + u % 2);
        }
    }

    static void multiply(const uint8_t *panel, const int8_t *q, int64_t count, float scale, float *y) {
        for (int i = 0; i < kOutputSlice / 4; ++i) {
            const auto *values = reinterpret_cast<const __m128i *>(panel) + i;
            __m128i sum = _mm_setzero_si128();
            for (int64_t u = 0; u < count; u += 2, values += kOutputSlice / 4) {
                const auto pair = static_cast<uint32_t>(static_cast<uint16_t>(q[u])) |
                                  static_cast<uint32_t>(static_cast<uint16_t>(q[u + 1])) << 16;
                const __m128i x = _mm_set1_epi32(static_cast<int>(pair));
                sum = _mm_add_epi32(sum, _mm_madd_epi16(_mm_loadu_si128(values), x));
            }
            const __m128 product = _mm_mul_ps(_mm_cvtepi32_ps(sum), _mm_set1_ps(scale));
            _mm_storeu_ps(y + 4 * i, _mm_add_ps(_mm_loadu_ps(y + 4 * i), product));
        }
    }

    template <int K, int V, bool Narrow, int Phase>
    static void slice(const SliceUnits &a, const UnitGroup &g, const Tables &c, float scale, float *y) {
        alignas(16) uint8_t panel[(kGroup + 8) * kOutputSlice * 2];
        decode<K, V, Narrow, Phase>(a, g.count, c, panel);
        multiply(panel, g.q, g.count, scale, y);
    }

    // Tokens [first, first + n); y begins with the first of them.
    static void multiply_panel(const Activations &a, int64_t first, int64_t n, int64_t group, const uint8_t *panel,
                               int64_t count, float *y, int64_t y_stride) {
        for (int64_t token = first; token < first + n; ++token) {
            multiply(panel, a.q + token * a.stride + group * kGroup, count,
                     a.scale[token * (a.stride / kGroup) + group], y + (token - first) * y_stride);
        }
    }
};

} // namespace
} // namespace seeddelta
