// Column layout in 256-bit registers: one 16-bit lane an output, four units at a time. Include inside an
// instruction-set unit only. The words are those of Tile256; interleaving keeps outputs 0-3, 8-11 of a step in one
// register and 4-7, 12-15 in the other until a group is done.
#pragma once
#include "simd/tile_256.hpp"
#include "simd/trellis_columns.hpp"

namespace seeddelta {
namespace {

template <class Ops>
struct Columns256 {
    using Tile = Tile256<Ops>;
    using Tables = typename Tile::Tables;
    static constexpr int64_t kUnits = 4;
    static constexpr bool kPairs = false;
    static constexpr int kBytes = 1; // a value in the panel

    static SEEDDELTA_INLINE const __m256i *at(const uint16_t *unit, int64_t offset) {
        return reinterpret_cast<const __m256i *>(unit + offset);
    }

    template <int K, int T, bool Narrow, int Value>
    static SEEDDELTA_INLINE __m256i hash(const __m256i *words, const Tables &c) {
        return _mm256_mullo_epi16(Tile::template state<K, T, Narrow>(words),
                                  Value == 0 ? c.multiplier0 : c.multiplier1);
    }

    // Calls use(i, lo, hi) for the values of outputs [16 * i, 16 * i + 16) of a slice and the four units from `unit`
    // on.
    template <int K, int V, bool Narrow, int Phase, int I = 0, class Use>
    static SEEDDELTA_INLINE void four_units(const uint16_t *const *unit, int64_t offset, const Tables &c, Use &&use) {
        constexpr int t = Phase * (4 / V) + I / V;
        constexpr int value = I % V;
        const __m256i first = Ops::lookup(Ops::high_bytes(hash<K, t, Narrow, value>(at(unit[0], offset), c),
                                                          hash<K, t, Narrow, value>(at(unit[1], offset), c)),
                                          c.table1, c.table2);
        const __m256i second = Ops::lookup(Ops::high_bytes(hash<K, t, Narrow, value>(at(unit[2], offset), c),
                                                           hash<K, t, Narrow, value>(at(unit[3], offset), c)),
                                           c.table1, c.table2);
        use(I, _mm256_unpacklo_epi16(first, second), _mm256_unpackhi_epi16(first, second));
        if constexpr (I < 3) {
            four_units<K, V, Narrow, Phase, I + 1>(unit, offset, c, use);
        }
    }

    // y += float(sums) * scale of 16 outputs
    static SEEDDELTA_INLINE void add_outputs(__m256i lo, __m256i hi, __m256 scale, float *y) {
        const __m256i first = _mm256_permute2x128_si256(lo, hi, 0x20);
        const __m256i second = _mm256_permute2x128_si256(lo, hi, 0x31);
        _mm256_storeu_ps(y, Tile::add_group(_mm256_loadu_ps(y), first, scale));
        _mm256_storeu_ps(y + 8, Tile::add_group(_mm256_loadu_ps(y + 8), second, scale));
    }

    template <int K, int V, bool Narrow, int Phase>
    [[gnu::noinline]] static void slice(const SliceUnits &a, const UnitGroup &g, const Tables &tables, float scale,
                                        float *y) {
        const Tables c = tables;
        __m256i lo_sum[4];
        __m256i hi_sum[4];
        for (int i = 0; i < 4; ++i) {
            lo_sum[i] = hi_sum[i] = _mm256_set1_epi32(g.bias);
        }
        for (int64_t u = 0; u < g.count; u += 4) {
            const __m256i x = Tile::four_activations(g.q + u);
            for (int i = 0; i < 4; ++i) {
                __builtin_prefetch(g.next[u + i] + a.ahead, 0, 2);
            }
            four_units<K, V, Narrow, Phase>(a.unit + u, a.offset, c,
                                            [&](int i, __m256i lo, __m256i hi) SEEDDELTA_INLINE_LAMBDA {
                                                lo_sum[i] = Ops::dot(lo_sum[i], lo, x);
                                                hi_sum[i] = Ops::dot(hi_sum[i], hi, x);
                                            });
        }
        for (int i = 0; i < 4; ++i) {
            add_outputs(lo_sum[i], hi_sum[i], _mm256_set1_ps(scale), y + 16 * i);
        }
    }

    // panel: [4 times 16 outputs][16 times four units][lo, hi]
    template <int K, int V, bool Narrow, int Phase>
    [[gnu::noinline]] static void decode(const SliceUnits &a, int64_t count, const Tables &tables, uint8_t *panel) {
        const Tables c = tables;
        auto *out = reinterpret_cast<__m256i *>(panel);
        for (int64_t u = 0; u < count; u += 4, out += 2) {
            four_units<K, V, Narrow, Phase>(a.unit + u, a.offset, c,
                                            [&](int i, __m256i lo, __m256i hi) SEEDDELTA_INLINE_LAMBDA {
                                                _mm256_store_si256(out + i * (kGroup / 2), lo);
                                                _mm256_store_si256(out + i * (kGroup / 2) + 1, hi);
                                            });
        }
    }

    template <int N>
    static void multiply_panel_n(const Activations &a, int64_t group, const uint8_t *panel, int64_t count,
                                 int64_t token, float *y, int64_t y_stride) {
        const int64_t groups = a.stride / kGroup;
        const int8_t *q = a.q + token * a.stride + group * kGroup;
        for (int i = 0; i < 4; ++i) {
            const auto *values = reinterpret_cast<const __m256i *>(panel) + i * (kGroup / 2);
            __m256i lo_sum[N];
            __m256i hi_sum[N];
            for (int n = 0; n < N; ++n) {
                lo_sum[n] = hi_sum[n] = _mm256_set1_epi32(a.bias[(token + n) * groups + group]);
            }
            for (int64_t u = 0; u < count; u += 4) {
                const __m256i lo = _mm256_load_si256(values++);
                const __m256i hi = _mm256_load_si256(values++);
                for (int n = 0; n < N; ++n) {
                    const __m256i x = Tile::four_activations(q + n * a.stride + u);
                    lo_sum[n] = Ops::dot(lo_sum[n], lo, x);
                    hi_sum[n] = Ops::dot(hi_sum[n], hi, x);
                }
            }
            for (int n = 0; n < N; ++n) {
                add_outputs(lo_sum[n], hi_sum[n], _mm256_set1_ps(a.scale[(token + n) * groups + group]),
                            y + n * y_stride + 16 * i);
            }
        }
    }

    // Tokens [first, first + n); y begins with the first of them.
    static void multiply_panel(const Activations &a, int64_t first, int64_t n, int64_t group, const uint8_t *panel,
                               int64_t count, float *y, int64_t y_stride) {
        int64_t token = 0;
        for (; token + Ops::kTokens <= n; token += Ops::kTokens) {
            multiply_panel_n<static_cast<int>(Ops::kTokens)>(a, group, panel, count, first + token,
                                                             y + token * y_stride, y_stride);
        }
        for (; token < n; ++token) {
            multiply_panel_n<1>(a, group, panel, count, first + token, y + token * y_stride, y_stride);
        }
    }
};

} // namespace
} // namespace seeddelta
