// Column layout in 128-bit NEON registers: one 16-bit lane an output, two halves of 8 outputs, four units at a time.
// Include inside an instruction-set unit only. The words are those of TileNeon.
#pragma once
#include "simd/tile_neon.hpp"
#include "simd/trellis_columns.hpp"

namespace seeddelta {
namespace {

template <class Dot>
struct TrellisColumnsNeon {
    using Tile = TileNeon<Dot>;
    using Tables = typename Tile::Tables;
    static constexpr int64_t kUnits = 4;
    static constexpr bool kPairs = false;
    static constexpr int kBytes = 1;     // a value in the panel
    static constexpr int kRegisters = 4; // of 4 outputs, for each step

    // Values of 8 outputs of two units: bytes (first, second) of every output's 16-bit lane.
    template <int K, int T, bool Narrow, int Value>
    static SEEDDELTA_INLINE uint16x8_t two_units(const uint16_t *first, const uint16_t *second, const Tables &c) {
        const uint16x8_t h0 = vmulq_n_u16(Tile::template state<K, T, Narrow>(first), c.multiplier[Value]);
        const uint16x8_t h1 = vmulq_n_u16(Tile::template state<K, T, Narrow>(second), c.multiplier[Value]);
        const uint8x16_t high = vtrn2q_u8(vreinterpretq_u8_u16(h0), vreinterpretq_u8_u16(h1));
        const int8x16_t v1 = vqtbl1q_s8(c.table1, vshrq_n_u8(high, 4));
        const int8x16_t v2 = vqtbl1q_s8(c.table2, vandq_u8(high, vdupq_n_u8(15)));
        return vreinterpretq_u16_s8(vaddq_s8(v1, v2));
    }

    // Calls use(i, values) for outputs [16 * i, 16 * i + 16) of a slice and the four units from `unit` on.
    template <int K, int V, bool Narrow, int Phase, int I = 0, class Use>
    static SEEDDELTA_INLINE void four_units(const uint16_t *const *unit, int64_t offset, const Tables &c, Use &&use) {
        constexpr int t = Phase * (4 / V) + I / V;
        constexpr int value = I % V;
        int8x16_t values[kRegisters];
        for (int half = 0; half < 2; ++half) {
            const int64_t at = offset + 8 * half;
            const uint16x8_t first = two_units<K, t, Narrow, value>(unit[0] + at, unit[1] + at, c);
            const uint16x8_t second = two_units<K, t, Narrow, value>(unit[2] + at, unit[3] + at, c);
            values[2 * half] = vreinterpretq_s8_u16(vzip1q_u16(first, second));
            values[2 * half + 1] = vreinterpretq_s8_u16(vzip2q_u16(first, second));
        }
        use(I, values);
        if constexpr (I < 3) {
            four_units<K, V, Narrow, Phase, I + 1>(unit, offset, c, use);
        }
    }

    static SEEDDELTA_INLINE void add_outputs(const int32x4_t *sum, float scale, float *y) {
        for (int r = 0; r < kRegisters; ++r) {
            const float32x4_t product = vmulq_f32(vcvtq_f32_s32(sum[r]), vdupq_n_f32(scale));
            vst1q_f32(y + 4 * r, vaddq_f32(vld1q_f32(y + 4 * r), product));
        }
    }

    template <int K, int V, bool Narrow, int Phase>
    [[gnu::noinline]] static void slice(const SliceUnits &a, const UnitGroup &g, const Tables &tables, float scale,
                                        float *y) {
        const Tables c = tables;
        int32x4_t sum[4][kRegisters] = {};
        for (int64_t u = 0; u < g.count; u += 4) {
            const int8x16_t x = Tile::four_activations(g.q + u);
            four_units<K, V, Narrow, Phase>(a.unit + u, a.offset, c,
                                            [&](int i, const int8x16_t *values) SEEDDELTA_INLINE_LAMBDA {
                                                for (int r = 0; r < kRegisters; ++r) {
                                                    sum[i][r] = Dot::dot(sum[i][r], values[r], x);
                                                }
                                            });
        }
        for (int i = 0; i < 4; ++i) {
            add_outputs(sum[i], scale, y + 16 * i);
        }
    }

    // panel: [4 times 16 outputs][16 times four units][16 outputs][4 units]
    template <int K, int V, bool Narrow, int Phase>
    [[gnu::noinline]] static void decode(const SliceUnits &a, int64_t count, const Tables &tables, uint8_t *panel) {
        const Tables c = tables;
        auto *out = reinterpret_cast<int8_t *>(panel);
        for (int64_t u = 0; u < count; u += 4, out += 64) {
            four_units<K, V, Narrow, Phase>(a.unit + u, a.offset, c,
                                            [&](int i, const int8x16_t *values) SEEDDELTA_INLINE_LAMBDA {
                                                for (int r = 0; r < kRegisters; ++r) {
                                                    vst1q_s8(out + i * 16 * kGroup + 16 * r, values[r]);
                                                }
                                            });
        }
    }

    template <int N>
    static void multiply_panel_n(const Activations &a, int64_t group, const uint8_t *panel, int64_t count,
                                 int64_t token, float *y, int64_t y_stride) {
        const int8_t *q = a.q + token * a.stride + group * kGroup;
        for (int i = 0; i < 4; ++i) {
            const auto *values = reinterpret_cast<const int8_t *>(panel) + i * 16 * kGroup;
            int32x4_t sum[N][kRegisters] = {};
            for (int64_t u = 0; u < count; u += 4, values += 64) {
                for (int n = 0; n < N; ++n) {
                    const int8x16_t x = Tile::four_activations(q + n * a.stride + u);
                    for (int r = 0; r < kRegisters; ++r) {
                        sum[n][r] = Dot::dot(sum[n][r], vld1q_s8(values + 16 * r), x);
                    }
                }
            }
            for (int n = 0; n < N; ++n) {
                add_outputs(sum[n], a.scale[(token + n) * (a.stride / kGroup) + group], y + n * y_stride + 16 * i);
            }
        }
    }

    // Tokens [first, first + n); y begins with the first of them.
    static void multiply_panel(const Activations &a, int64_t first, int64_t n, int64_t group, const uint8_t *panel,
                               int64_t count, float *y, int64_t y_stride) {
        int64_t token = 0;
        for (; token + Tile::kTokens <= n; token += Tile::kTokens) {
            multiply_panel_n<static_cast<int>(Tile::kTokens)>(a, group, panel, count, first + token,
                                                              y + token * y_stride, y_stride);
        }
        for (; token < n; ++token) {
            multiply_panel_n<1>(a, group, panel, count, first + token, y + token * y_stride, y_stride);
        }
    }
};

} // namespace
} // namespace seeddelta
