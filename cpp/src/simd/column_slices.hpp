// Slices of products with the trellis in column layout, one 16-bit lane an output, four units at a time: their values
// fill the 32-bit lane of an output. Include inside an instruction-set unit only. `Words` are those of words_*.hpp.
// Interleaving may leave the outputs in another order until a group is done.
#pragma once
#include "simd/tile.hpp"
#include "simd/trellis_columns.hpp"

namespace seeddelta {
namespace {

// Words::kTiles slices at once, whose steps have the same shifts.
template <class Words>
struct SliceWalk : TrellisValues<Words> {
    using Base = TrellisValues<Words>;
    using Base::kFloats;
    using Base::kParts;
    using Base::kRegisters;
    using typename Base::Tables;
    using typename Base::V;
    static constexpr int kSlices = Words::kTiles;

    // Where the words of four units are.
    struct FourUnits {
        const uint16_t *words[4][kSlices];
        SEEDDELTA_INLINE FourUnits(const SliceUnits *a, int64_t first) {
            for (int slice = 0; slice < kSlices; ++slice) {
                for (int i = 0; i < 4; ++i) {
                    words[i][slice] = a[slice].unit[first + i] + a[slice].offset;
                }
            }
        }

        // States of the unit times the multiplier
        template <int K, int T, bool Narrow>
        SEEDDELTA_INLINE V hash(int unit, int part, const typename Words::Multiplier &multiplier) const {
            const auto word = [&](int i) SEEDDELTA_INLINE_LAMBDA {
                return Words::load_states(words[unit], i * kTileRows + part * kTileRows / kParts);
            };
            return Words::multiply(Base::template state<K, T, Narrow>(word), multiplier);
        }

        // Calls use(i, values) for outputs [16 * i, 16 * i + 16) of a slice.
        template <int K, int ValuesPerStep, bool Narrow, int Phase, int I = 0, class Use>
        SEEDDELTA_INLINE void quarters(const Tables &c, Use &&use) const {
            constexpr int t = Phase * (4 / ValuesPerStep) + I / ValuesPerStep;
            const auto &multiplier = c.multiplier[I % ValuesPerStep];
            V values[kRegisters];
            for (int part = 0; part < kParts; ++part) {
                const V first =
                    Base::values(hash<K, t, Narrow>(0, part, multiplier), hash<K, t, Narrow>(1, part, multiplier), c);
                const V second =
                    Base::values(hash<K, t, Narrow>(2, part, multiplier), hash<K, t, Narrow>(3, part, multiplier), c);
                Words::interleave(first, second, values + 2 * part);
            }
            use(I, values);
            if constexpr (I < 3) {
                quarters<K, ValuesPerStep, Narrow, Phase, I + 1>(c, use);
            }
        }
    };

    // y += float(sums) * scale of 16 outputs
    static SEEDDELTA_INLINE void add_outputs(V *sums, float scale, float *const *y, int64_t at) {
        Words::order(sums);
        for (int r = 0; r < kRegisters; ++r) {
            float *out = y[r * kFloats / kTileRows] + at + r * kFloats % kTileRows;
            Words::store_floats(out, Words::add_group(Words::load_floats(out), sums[r], scale));
        }
    }

    template <int K, int ValuesPerStep, bool Narrow, int Phase>
    [[gnu::noinline]] static void multiply(const SliceUnits *a, const UnitGroup &g, const Tables &tables, float scale,
                                           float *const *y) {
        const Tables c = tables;
        V sum[4][kRegisters];
        for (auto &quarter : sum) {
            for (V &s : quarter) {
                s = Words::start(g.bias);
            }
        }
        for (int64_t u = 0; u < g.count; u += 4) {
            const FourUnits units(a, u);
            if constexpr (Words::kFetchesUnits) {
                for (int i = 0; i < 4; ++i) {
                    for (int slice = 0; slice < kSlices; ++slice) {
                        __builtin_prefetch(g.next[u + i] + a[slice].ahead, 0, 2);
                    }
                }
            }
            const V x = Words::four(g.q + u);
            units.template quarters<K, ValuesPerStep, Narrow, Phase>(
                c, [&](int i, const V *values) SEEDDELTA_INLINE_LAMBDA {
                    for (int r = 0; r < kRegisters; ++r) {
                        sum[i][r] = Words::dot(sum[i][r], values[r], x);
                    }
                });
        }
        for (int i = 0; i < 4; ++i) {
            add_outputs(sum[i], scale, y, i * kTileRows);
        }
    }

    // panel: [4 times 16 outputs][kGroup / 4 times four units][kRegisters] registers
    template <int K, int ValuesPerStep, bool Narrow, int Phase>
    [[gnu::noinline]] static void decode(const SliceUnits &a, int64_t count, const Tables &tables, uint8_t *panel) {
        const Tables c = tables;
        for (int64_t u = 0; u < count; u += 4, panel += 4 * kTileRows) {
            FourUnits(&a, u).template quarters<K, ValuesPerStep, Narrow, Phase>(
                c, [&](int i, const V *values) SEEDDELTA_INLINE_LAMBDA {
                    for (int r = 0; r < kRegisters; ++r) {
                        Words::store(panel + i * kTileRows * kGroup + r * sizeof(V), values[r]);
                    }
                });
        }
    }
};

// The operations of trellis_columns.hpp. `Wide` are the words for one token and Wide::kTiles slices a chunk apart;
// prompts, and slices without a partner, go through `Words`.
template <class Words, class Wide = Words>
struct ColumnSlices {
    using Walk = SliceWalk<Words>;
    using V = typename Words::V;
    static constexpr int64_t kUnits = 4;
    static constexpr bool kPairs = Wide::kTiles == 2;
    static constexpr int kBytes = 1; // a value in the panel
    static constexpr int kRegisters = Walk::kRegisters;
    static_assert(Words::kTiles == 1);

    struct Tables {
        typename Walk::Tables one;
        typename SliceWalk<Wide>::Tables two;
        explicit Tables(const uint16_t *multiplier) : one(multiplier), two(multiplier) {}
    };

    template <int K, int ValuesPerStep, bool Narrow, int Phase>
    static void slice(const SliceUnits &a, const UnitGroup &g, const Tables &c, float scale, float *y) {
        Walk::template multiply<K, ValuesPerStep, Narrow, Phase>(&a, g, c.one, scale, &y);
    }

    template <int K, int ValuesPerStep, bool Narrow, int Phase>
    static void pair(const SliceUnits &low, const SliceUnits &high, const UnitGroup &g, const Tables &c, float scale,
                     float *y_low, float *y_high) {
        const SliceUnits a[2] = {low, high};
        float *const y[2] = {y_low, y_high};
        SliceWalk<Wide>::template multiply<K, ValuesPerStep, Narrow, Phase>(a, g, c.two, scale, y);
    }

    template <int K, int ValuesPerStep, bool Narrow, int Phase>
    static void decode(const SliceUnits &a, int64_t count, const Tables &c, uint8_t *panel) {
        Walk::template decode<K, ValuesPerStep, Narrow, Phase>(a, count, c.one, panel);
    }

    template <int N>
    static void multiply_panel_n(const Activations &a, int64_t group, const uint8_t *panel, int64_t count,
                                 int64_t token, float *y, int64_t y_stride) {
        const int64_t groups = a.stride / kGroup;
        const int8_t *q = a.q + token * a.stride + group * kGroup;
        for (int i = 0; i < 4; ++i) {
            const uint8_t *from = panel + i * kTileRows * kGroup;
            V sum[N][kRegisters];
            for (int n = 0; n < N; ++n) {
                for (V &s : sum[n]) {
                    s = Words::start(a.bias[(token + n) * groups + group]);
                }
            }
            for (int64_t u = 0; u < count; u += 4, from += 4 * kTileRows) {
                for (int n = 0; n < N; ++n) {
                    const V x = Words::four(q + n * a.stride + u);
                    for (int r = 0; r < kRegisters; ++r) {
                        sum[n][r] = Words::dot(sum[n][r], Words::load(from + r * sizeof(V)), x);
                    }
                }
            }
            for (int n = 0; n < N; ++n) {
                float *const out = y + n * y_stride;
                Walk::add_outputs(sum[n], a.scale[(token + n) * groups + group], &out, i * kTileRows);
            }
        }
    }

    // Tokens [first, first + n); y begins with the first of them.
    static void multiply_panel(const Activations &a, int64_t first, int64_t n, int64_t group, const uint8_t *panel,
                               int64_t count, float *y, int64_t y_stride) {
        int64_t token = 0;
        for (; token + Words::kTokens <= n; token += Words::kTokens) {
            multiply_panel_n<static_cast<int>(Words::kTokens)>(a, group, panel, count, first + token,
                                                               y + token * y_stride, y_stride);
        }
        for (; token < n; ++token) {
            multiply_panel_n<1>(a, group, panel, count, first + token, y + token * y_stride, y_stride);
        }
    }
};

} // namespace
} // namespace seeddelta
