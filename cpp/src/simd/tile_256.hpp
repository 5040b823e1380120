// Trellis tiles in 256-bit registers: one 16-bit lane a row. Include inside an instruction-set unit only.
// `Ops` has the words that differ between AVX2 and AVX-512VL: concat, high_bytes, lookup, dot.
//
// Four columns become one step of unsigned-times-signed byte products: the values (biased by 64) of columns t..t+3 of a
// row fill one 32-bit lane. Interleaving keeps rows 0-3, 8-11 in one register and 4-7, 12-15 in the other; sums are put
// in order once a group of 64 columns.
#pragma once
#include <immintrin.h>

#include "format/trellis.hpp"
#include "simd/kernel_table.hpp"
#include "simd/inline.hpp"
#include "simd/rates.hpp"

namespace seeddelta {
namespace {

template <class Ops>
struct Tile256 {
    static constexpr int64_t kTokens = Ops::kTokens;
    static constexpr int64_t kTiles = 1;

    struct Tables {
        __m256i multiplier0, multiplier1, table1, table2;
        SEEDDELTA_INLINE explicit Tables(const seeddelta_ctx &ctx) : Tables(ctx.multiplier) {}
        SEEDDELTA_INLINE explicit Tables(const uint16_t *multiplier) {
            multiplier0 = _mm256_set1_epi16(static_cast<short>(multiplier[0]));
            multiplier1 = _mm256_set1_epi16(static_cast<short>(multiplier[1]));
            const __m128i t1 = _mm_loadu_si128(reinterpret_cast<const __m128i *>(kTrellisTable1));
            const __m128i t2 = _mm_loadu_si128(reinterpret_cast<const __m128i *>(kTrellisTable2));
            table1 = _mm256_broadcastsi128_si256(_mm_add_epi8(t1, _mm_set1_epi8(kValueBias)));
            table2 = _mm256_broadcastsi128_si256(t2);
        }
    };

    template <int K, int T, bool Narrow>
    static SEEDDELTA_INLINE __m256i state(const __m256i *words) {
        constexpr int word = K * T / 16;
        constexpr int shift = K * T % 16;
        if constexpr (shift == 0) {
            return _mm256_loadu_si256(words + word);
        } else if constexpr (Narrow && shift >= 12) {
            return _mm256_srli_epi16(_mm256_loadu_si256(words + word + 1), 16 - shift);
        } else {
            return Ops::template concat<shift>(_mm256_loadu_si256(words + word), _mm256_loadu_si256(words + word + 1));
        }
    }

    // Values of two neighbouring columns: bytes (t, t + 1) of every row's lane.
    template <int K, int V, bool Narrow, int T>
    static SEEDDELTA_INLINE __m256i two_columns(const __m256i *words, const Tables &c) {
        if constexpr (V == 1) {
            return Ops::lookup(Ops::high_bytes(_mm256_mullo_epi16(state<K, T, Narrow>(words), c.multiplier0),
                                               _mm256_mullo_epi16(state<K, T + 1, Narrow>(words), c.multiplier0)),
                               c.table1, c.table2);
        } else {
            const __m256i s = state<K, T / 2, Narrow>(words);
            return Ops::lookup(
                Ops::high_bytes(_mm256_mullo_epi16(s, c.multiplier0), _mm256_mullo_epi16(s, c.multiplier1)), c.table1,
                c.table2);
        }
    }

    // Calls use(quad, lo, hi) for the columns [4 * quad, 4 * quad + 4) of a chunk of 16 steps (16 * V columns).
    template <int K, int V, bool Narrow, int Quad = 0, class Use>
    static SEEDDELTA_INLINE void chunk(const __m256i *words, const Tables &c, Use &&use) {
        const __m256i first = two_columns<K, V, Narrow, 4 * Quad>(words, c);
        const __m256i second = two_columns<K, V, Narrow, 4 * Quad + 2>(words, c);
        use(Quad, _mm256_unpacklo_epi16(first, second), _mm256_unpackhi_epi16(first, second));
        if constexpr (Quad + 1 < 4 * V) {
            chunk<K, V, Narrow, Quad + 1>(words, c, use);
        }
    }

    static SEEDDELTA_INLINE __m256i four_activations(const int8_t *q) {
        int32_t bits;
        __builtin_memcpy(&bits, q, 4);
        return _mm256_set1_epi32(bits);
    }

    static SEEDDELTA_INLINE void store_rows(__m256 lo, __m256 hi, float *acc) {
        _mm256_store_ps(acc, _mm256_permute2f128_ps(lo, hi, 0x20));
        _mm256_store_ps(acc + 8, _mm256_permute2f128_ps(lo, hi, 0x31));
    }

    // acc += float(sums) * scale, rounded twice as the format says
    static SEEDDELTA_INLINE __m256 add_group(__m256 acc, __m256i sums, __m256 scale) {
        return _mm256_add_ps(acc, _mm256_mul_ps(_mm256_cvtepi32_ps(sums), scale));
    }

    template <int K, int V, bool Narrow>
    [[gnu::noinline]] static void multiply_codes_kv(const seeddelta_ctx &ctx, int64_t tile, const Activations &a,
                                                    float *acc) {
        constexpr int64_t chunks_a_group = kGroup / (16 * V);
        const Tables c(ctx);
        const auto *words = reinterpret_cast<const __m256i *>(ctx.codes + tile * ctx.words() * kTileRows);
        const int8_t *q = a.q;
        __m256 lo_total = _mm256_setzero_ps();
        __m256 hi_total = _mm256_setzero_ps();
        int64_t chunks = ctx.steps() / 16;
        for (int64_t group = 0; chunks > 0; ++group) {
            __m256i lo_sum = _mm256_set1_epi32(a.bias[group]);
            __m256i hi_sum = lo_sum;
            const int64_t count = chunks < chunks_a_group ? chunks : chunks_a_group;
            for (int64_t i = 0; i < count; ++i) {
                chunk<K, V, Narrow>(words, c, [&](int quad, __m256i lo, __m256i hi) SEEDDELTA_INLINE_LAMBDA {
                    const __m256i x = four_activations(q + 4 * quad);
                    lo_sum = Ops::dot(lo_sum, lo, x);
                    hi_sum = Ops::dot(hi_sum, hi, x);
                });
                words += K;
                q += 16 * V;
            }
            chunks -= count;
            const __m256 scale = _mm256_set1_ps(a.scale[group]);
            lo_total = add_group(lo_total, lo_sum, scale);
            hi_total = add_group(hi_total, hi_sum, scale);
        }
        store_rows(lo_total, hi_total, acc);
    }

    template <int K, int V, bool Narrow>
    static void decode_kv(const seeddelta_ctx &ctx, int64_t tile, uint8_t *panel) {
        const Tables c(ctx);
        const auto *words = reinterpret_cast<const __m256i *>(ctx.codes + tile * ctx.words() * kTileRows);
        auto *out = reinterpret_cast<__m256i *>(panel);
        for (int64_t i = 0; i < ctx.steps() / 16; ++i) {
            chunk<K, V, Narrow>(words, c, [&](int quad, __m256i lo, __m256i hi) SEEDDELTA_INLINE_LAMBDA {
                _mm256_store_si256(out + 2 * quad, lo);
                _mm256_store_si256(out + 2 * quad + 1, hi);
            });
            words += K;
            out += 8 * V;
        }
    }

    // N tokens at a time against a decoded tile: [columns / 4][lo, hi] registers.
    template <int N>
    static void multiply_panel_n(const seeddelta_ctx &ctx, const Activations &a, const uint8_t *panel, int64_t token,
                                 float (*acc)[kTileRows]) {
        const auto *values = reinterpret_cast<const __m256i *>(panel);
        const int64_t groups = a.stride / kGroup;
        int64_t quads = ctx.steps() * ctx.values_per_step / 4;
        __m256 lo_total[N];
        __m256 hi_total[N];
        for (int n = 0; n < N; ++n) {
            lo_total[n] = hi_total[n] = _mm256_setzero_ps();
        }
        for (int64_t group = 0; quads > 0; ++group) {
            __m256i lo_sum[N];
            __m256i hi_sum[N];
            const int8_t *q = a.q + token * a.stride + group * kGroup;
            for (int n = 0; n < N; ++n) {
                lo_sum[n] = hi_sum[n] = _mm256_set1_epi32(a.bias[(token + n) * groups + group]);
            }
            const int64_t count = quads < kGroup / 4 ? quads : kGroup / 4;
            for (int64_t i = 0; i < count; ++i) {
                const __m256i lo = _mm256_load_si256(values++);
                const __m256i hi = _mm256_load_si256(values++);
                for (int n = 0; n < N; ++n) {
                    const __m256i x = four_activations(q + n * a.stride + 4 * i);
                    lo_sum[n] = Ops::dot(lo_sum[n], lo, x);
                    hi_sum[n] = Ops::dot(hi_sum[n], hi, x);
                }
            }
            quads -= count;
            for (int n = 0; n < N; ++n) {
                const __m256 scale = _mm256_set1_ps(a.scale[(token + n) * groups + group]);
                lo_total[n] = add_group(lo_total[n], lo_sum[n], scale);
                hi_total[n] = add_group(hi_total[n], hi_sum[n], scale);
            }
        }
        for (int n = 0; n < N; ++n) {
            store_rows(lo_total[n], hi_total[n], acc[n]);
        }
    }

    static void multiply_codes(const seeddelta_ctx &ctx, int64_t tile, int64_t, const Activations &a, uint8_t *,
                               float (*acc)[kTileRows]) {
        with_rate(ctx, [&]<int K, int V, bool Narrow>() { multiply_codes_kv<K, V, Narrow>(ctx, tile, a, acc[0]); });
    }

    static void decode(const seeddelta_ctx &ctx, int64_t tile, uint8_t *panel) {
        with_rate(ctx, [&]<int K, int V, bool Narrow>() { decode_kv<K, V, Narrow>(ctx, tile, panel); });
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

    static SEEDDELTA_INLINE int32_t dot64(const uint8_t *values, const int8_t *q) {
        const auto *v = reinterpret_cast<const __m256i *>(values);
        const auto *x = reinterpret_cast<const __m256i *>(q);
        __m256i sum = Ops::dot(_mm256_setzero_si256(), _mm256_loadu_si256(v), _mm256_loadu_si256(x));
        sum = Ops::dot(sum, _mm256_loadu_si256(v + 1), _mm256_loadu_si256(x + 1));
        __m128i s = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
        s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4E));
        s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xB1));
        return _mm_cvtsi128_si32(s);
    }
};

} // namespace
} // namespace seeddelta
