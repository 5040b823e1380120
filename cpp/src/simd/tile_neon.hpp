// Trellis tiles in 128-bit NEON registers: one 16-bit lane a row, two halves of 8 rows. Include inside an
// instruction-set unit only. `Dot` adds the products of four neighbouring signed bytes to each 32-bit lane.
//
// Four columns become one step of byte products: the values of columns t..t+3 of a row fill one 32-bit lane, so that a
// tile takes four registers of 4 rows each.
#pragma once
#include <arm_neon.h>

#include "format/trellis.hpp"
#include "simd/kernel_table.hpp"
#include "simd/inline.hpp"
#include "simd/rates.hpp"

namespace seeddelta {
namespace {

template <class Dot>
struct TileNeon {
    static constexpr int64_t kTokens = 4;
    static constexpr int64_t kTiles = 1;
    static constexpr int kRegisters = 4; // of 4 rows

    struct Tables {
        uint16_t multiplier[2];
        int8x16_t table1, table2;
        SEEDDELTA_INLINE explicit Tables(const seeddelta_ctx &ctx) : Tables(ctx.multiplier) {}
        SEEDDELTA_INLINE explicit Tables(const uint16_t *m)
            : multiplier{m[0], m[1]}, table1(vld1q_s8(kTrellisTable1)),
              table2(vld1q_s8(kTrellisTable2)) {}
    };

    template <int K, int T, bool Narrow>
    static SEEDDELTA_INLINE uint16x8_t state(const uint16_t *words) {
        constexpr int word = K * T / 16;
        constexpr int shift = K * T % 16;
        if constexpr (shift == 0) {
            return vld1q_u16(words + word * kTileRows);
        } else if constexpr (Narrow && shift >= 12) {
            return vshrq_n_u16(vld1q_u16(words + (word + 1) * kTileRows), 16 - shift);
        } else {
            return vsriq_n_u16(vshlq_n_u16(vld1q_u16(words + word * kTileRows), shift),
                               vld1q_u16(words + (word + 1) * kTileRows), 16 - shift);
        }
    }

    // Values of two neighbouring columns of 8 rows: bytes (t, t + 1) of every row's 16-bit lane.
    template <int K, int V, bool Narrow, int T>
    static SEEDDELTA_INLINE uint16x8_t two_columns(const uint16_t *words, const Tables &c) {
        uint16x8_t h0;
        uint16x8_t h1;
        if constexpr (V == 1) {
            h0 = vmulq_n_u16(state<K, T, Narrow>(words), c.multiplier[0]);
            h1 = vmulq_n_u16(state<K, T + 1, Narrow>(words), c.multiplier[0]);
        } else {
            const uint16x8_t s = state<K, T / 2, Narrow>(words);
            h0 = vmulq_n_u16(s, c.multiplier[0]);
            h1 = vmulq_n_u16(s, c.multiplier[1]);
        }
        const uint8x16_t high = vtrn2q_u8(vreinterpretq_u8_u16(h0), vreinterpretq_u8_u16(h1));
        const int8x16_t v1 = vqtbl1q_s8(c.table1, vshrq_n_u8(high, 4));
        const int8x16_t v2 = vqtbl1q_s8(c.table2, vandq_u8(high, vdupq_n_u8(15)));
        return vreinterpretq_u16_s8(vaddq_s8(v1, v2));
    }

    // Calls use(quad, values) for the columns [4 * quad, 4 * quad + 4) of a chunk of 16 steps (16 * V columns).
    template <int K, int V, bool Narrow, int Quad = 0, class Use>
    static SEEDDELTA_INLINE void chunk(const uint16_t *words, const Tables &c, Use &&use) {
        int8x16_t values[kRegisters];
        for (int half = 0; half < 2; ++half) {
            const uint16x8_t first = two_columns<K, V, Narrow, 4 * Quad>(words + 8 * half, c);
            const uint16x8_t second = two_columns<K, V, Narrow, 4 * Quad + 2>(words + 8 * half, c);
            values[2 * half] = vreinterpretq_s8_u16(vzip1q_u16(first, second));
            values[2 * half + 1] = vreinterpretq_s8_u16(vzip2q_u16(first, second));
        }
        use(Quad, values);
        if constexpr (Quad + 1 < 4 * V) {
            chunk<K, V, Narrow, Quad + 1>(words, c, use);
        }
    }

    static SEEDDELTA_INLINE int8x16_t four_activations(const int8_t *q) {
        int32_t bits;
        __builtin_memcpy(&bits, q, 4);
        return vreinterpretq_s8_s32(vdupq_n_s32(bits));
    }

    // total += float(sum) * scale, rounded twice as the format says
    static SEEDDELTA_INLINE void add_group(float32x4_t *total, const int32x4_t *sum, float scale) {
        for (int r = 0; r < kRegisters; ++r) {
            total[r] = vaddq_f32(total[r], vmulq_f32(vcvtq_f32_s32(sum[r]), vdupq_n_f32(scale)));
        }
    }

    template <int K, int V, bool Narrow>
    [[gnu::noinline]] static void multiply_codes_kv(const seeddelta_ctx &ctx, int64_t tile, const Activations &a,
                                                    float *acc) {
        constexpr int64_t chunks_a_group = kGroup / (16 * V);
        const Tables c(ctx);
        const uint16_t *words = ctx.codes + tile * ctx.words() * kTileRows;
        const int8_t *q = a.q;
        float32x4_t total[kRegisters] = {};
        int64_t chunks = ctx.steps() / 16;
        for (int64_t group = 0; chunks > 0; ++group) {
            int32x4_t sum[kRegisters] = {};
            const int64_t count = chunks < chunks_a_group ? chunks : chunks_a_group;
            for (int64_t i = 0; i < count; ++i) {
                chunk<K, V, Narrow>(words, c, [&](int quad, const int8x16_t *values) SEEDDELTA_INLINE_LAMBDA {
                    const int8x16_t x = four_activations(q + 4 * quad);
                    for (int r = 0; r < kRegisters; ++r) {
                        sum[r] = Dot::dot(sum[r], values[r], x);
                    }
                });
                words += K * kTileRows;
                q += 16 * V;
            }
            chunks -= count;
            add_group(total, sum, a.scale[group]);
        }
        for (int r = 0; r < kRegisters; ++r) {
            vst1q_f32(acc + 4 * r, total[r]);
        }
    }

    // panel: [columns / 4][16 rows][4 columns]
    template <int K, int V, bool Narrow>
    static void decode_kv(const seeddelta_ctx &ctx, int64_t tile, int8_t *panel) {
        const Tables c(ctx);
        const uint16_t *words = ctx.codes + tile * ctx.words() * kTileRows;
        for (int64_t i = 0; i < ctx.steps() / 16; ++i) {
            chunk<K, V, Narrow>(words, c, [&](int quad, const int8x16_t *values) SEEDDELTA_INLINE_LAMBDA {
                for (int r = 0; r < kRegisters; ++r) {
                    vst1q_s8(panel + 64 * quad + 16 * r, values[r]);
                }
            });
            words += K * kTileRows;
            panel += 256 * V;
        }
    }

    // N tokens at a time against a decoded tile.
    template <int N>
    static void multiply_panel_n(const seeddelta_ctx &ctx, const Activations &a, const uint8_t *panel, int64_t token,
                                 float (*acc)[kTileRows]) {
        const auto *values = reinterpret_cast<const int8_t *>(panel);
        const int64_t groups = a.stride / kGroup;
        int64_t quads = ctx.steps() * ctx.values_per_step / 4;
        float32x4_t total[N][kRegisters] = {};
        for (int64_t group = 0; quads > 0; ++group) {
            int32x4_t sum[N][kRegisters] = {};
            const int8_t *q = a.q + token * a.stride + group * kGroup;
            const int64_t count = quads < kGroup / 4 ? quads : kGroup / 4;
            for (int64_t i = 0; i < count; ++i, values += 64) {
                int8x16_t v[kRegisters];
                for (int r = 0; r < kRegisters; ++r) {
                    v[r] = vld1q_s8(values + 16 * r);
                }
                for (int n = 0; n < N; ++n) {
                    const int8x16_t x = four_activations(q + n * a.stride + 4 * i);
                    for (int r = 0; r < kRegisters; ++r) {
                        sum[n][r] = Dot::dot(sum[n][r], v[r], x);
                    }
                }
            }
            quads -= count;
            for (int n = 0; n < N; ++n) {
                add_group(total[n], sum[n], a.scale[(token + n) * groups + group]);
            }
        }
        for (int n = 0; n < N; ++n) {
            for (int r = 0; r < kRegisters; ++r) {
                vst1q_f32(acc[n] + 4 * r, total[n][r]);
            }
        }
    }

    static void multiply_codes(const seeddelta_ctx &ctx, int64_t tile, int64_t, const Activations &a, uint8_t *,
                               float (*acc)[kTileRows]) {
        with_rate(ctx, [&]<int K, int V, bool Narrow>() { multiply_codes_kv<K, V, Narrow>(ctx, tile, a, acc[0]); });
    }

    static void decode(const seeddelta_ctx &ctx, int64_t tile, uint8_t *panel) {
        with_rate(ctx, [&]<int K, int V, bool Narrow>() {
            decode_kv<K, V, Narrow>(ctx, tile, reinterpret_cast<int8_t *>(panel));
        });
    }

    static void multiply_panel(const seeddelta_ctx &ctx, const Activations &a, const uint8_t *panel, int64_t token,
                               int64_t count, float (*acc)[kTileRows]) {
        int64_t done = 0;
        for (; done + kTokens <= count; done += kTokens) {
            multiply_panel_n<static_cast<int>(kTokens)>(ctx, a, panel, token + done, acc + done);
        }
        for (; done < count; ++done) {
            multiply_panel_n<1>(ctx, a, panel, token + done, acc + done);
        }
    }

    // The biased values of prng_block are at most 127: signed bytes hold them.
    static SEEDDELTA_INLINE int32_t dot64(const uint8_t *values, const int8_t *q) {
        int32x4_t sum = vdupq_n_s32(0);
        for (int i = 0; i < 4; ++i) {
            sum = Dot::dot(sum, vreinterpretq_s8_u8(vld1q_u8(values + 16 * i)), vld1q_s8(q + 16 * i));
        }
        return vaddvq_s32(sum);
    }
};

} // namespace
} // namespace seeddelta
