// Column layout in 512-bit registers for one token: four units at a time, a slice in the lower half and the one a chunk
// later, whose steps have the same shifts, in the upper half. Include inside an instruction-set unit only. Prompts, and
// slices without a partner, go through Columns256.
#pragma once
#include "simd/tile_512.hpp"
#include "simd/trellis_columns_256.hpp"

namespace seeddelta {
namespace {

template <class Ops>
struct Columns512 : Columns256<Ops> {
    using Half = Columns256<Ops>;
    using Tile = Tile512<Ops>;
    static constexpr bool kPairs = true;
    struct Tables : Half::Tables {
        typename Tile::Tables wide;
        explicit Tables(const uint16_t *multiplier) : Half::Tables(multiplier), wide(multiplier) {}
    };

    template <int K, int T, bool Narrow, int Value>
    static SEEDDELTA_INLINE __m512i hash(const uint16_t *low, const uint16_t *high, const typename Tile::Tables &c) {
        constexpr int word = K * T / 16;
        constexpr int shift = K * T % 16;
        __m512i state;
        if constexpr (shift == 0) {
            state = Tile::load(low, high, word);
        } else if constexpr (Narrow && shift >= 12) {
            state = _mm512_srli_epi16(Tile::load(low, high, word + 1), 16 - shift);
        } else {
            state = _mm512_shldi_epi16(Tile::load(low, high, word), Tile::load(low, high, word + 1), shift);
        }
        return _mm512_mullo_epi16(state, Value == 0 ? c.multiplier0 : c.multiplier1);
    }

    template <int K, int V, bool Narrow, int Phase, int I = 0>
    static SEEDDELTA_INLINE void four_units(const uint16_t *const (&low)[4], const uint16_t *const (&high)[4],
                                            __m512i x, const typename Tile::Tables &c, __m512i (&lo_sum)[4],
                                            __m512i (&hi_sum)[4]) {
        constexpr int t = Phase * (4 / V) + I / V;
        constexpr int value = I % V;
        const __m512i first = Tile::values(hash<K, t, Narrow, value>(low[0], high[0], c),
                                           hash<K, t, Narrow, value>(low[1], high[1], c), c);
        const __m512i second = Tile::values(hash<K, t, Narrow, value>(low[2], high[2], c),
                                            hash<K, t, Narrow, value>(low[3], high[3], c), c);
        lo_sum[I] = _mm512_dpbusd_epi32(lo_sum[I], _mm512_unpacklo_epi16(first, second), x);
        hi_sum[I] = _mm512_dpbusd_epi32(hi_sum[I], _mm512_unpackhi_epi16(first, second), x);
        if constexpr (I < 3) {
            four_units<K, V, Narrow, Phase, I + 1>(low, high, x, c, lo_sum, hi_sum);
        }
    }

    // Two slices of the same phase.
    template <int K, int V, bool Narrow, int Phase>
    [[gnu::noinline]] static void pair(const SliceUnits &a, const SliceUnits &b, const UnitGroup &g,
                                       const Tables &tables, float scale, float *y_low, float *y_high) {
        const typename Tile::Tables c = tables.wide;
        __m512i lo[4];
        __m512i hi[4];
        for (int i = 0; i < 4; ++i) {
            lo[i] = hi[i] = _mm512_set1_epi32(g.bias);
        }
        for (int64_t u = 0; u < g.count; u += 4) {
            const uint16_t *const low[4] = {a.unit[u] + a.offset, a.unit[u + 1] + a.offset, a.unit[u + 2] + a.offset,
                                            a.unit[u + 3] + a.offset};
            const uint16_t *const high[4] = {b.unit[u] + b.offset, b.unit[u + 1] + b.offset, b.unit[u + 2] + b.offset,
                                             b.unit[u + 3] + b.offset};
            for (int i = 0; i < 4; ++i) {
                __builtin_prefetch(g.next[u + i] + a.ahead, 0, 2);
                __builtin_prefetch(g.next[u + i] + b.ahead, 0, 2);
            }
            int32_t bits;
            __builtin_memcpy(&bits, g.q + u, 4);
            four_units<K, V, Narrow, Phase>(low, high, _mm512_set1_epi32(bits), c, lo, hi);
        }
        const __m256 factor = _mm256_set1_ps(scale);
        for (int i = 0; i < 4; ++i) {
            Half::add_outputs(_mm512_castsi512_si256(lo[i]), _mm512_castsi512_si256(hi[i]), factor, y_low + 16 * i);
            Half::add_outputs(_mm512_extracti64x4_epi64(lo[i], 1), _mm512_extracti64x4_epi64(hi[i], 1), factor,
                              y_high + 16 * i);
        }
    }
};

} // namespace
} // namespace seeddelta
