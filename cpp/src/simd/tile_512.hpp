// Trellis tiles in 512-bit registers for one token: two tiles side by side, one 16-bit lane a row. Include inside an
// instruction-set unit only. Prompts, and a last tile without a neighbour, go through Tile256.
#pragma once
#include "simd/tile_256.hpp"

namespace seeddelta {
namespace {

template <class Ops>
struct Tile512 : Tile256<Ops> {
    using Half = Tile256<Ops>;
    static constexpr int64_t kTiles = 2;

    struct Tables {
        __m512i multiplier0, multiplier1, table1, table2, odd_bytes;
        SEEDDELTA_INLINE explicit Tables(const seeddelta_ctx &ctx) : Tables(ctx.multiplier) {}
        SEEDDELTA_INLINE explicit Tables(const uint16_t *multiplier) {
            const typename Half::Tables half(multiplier);
            multiplier0 = _mm512_broadcastq_epi64(_mm256_castsi256_si128(half.multiplier0));
            multiplier1 = _mm512_broadcastq_epi64(_mm256_castsi256_si128(half.multiplier1));
            table1 = _mm512_broadcast_i32x4(_mm256_castsi256_si128(half.table1));
            odd_bytes = _mm512_broadcast_i32x4(_mm_set_epi8(15, 15, 13, 13, 11, 11, 9, 9, 7, 7, 5, 5, 3, 3, 1, 1));
            table2 = _mm512_broadcast_i32x4(_mm256_castsi256_si128(half.table2));
        }
    };

    // Word number Word of the chunk in both tiles.
    static SEEDDELTA_INLINE __m512i load(const uint16_t *low, const uint16_t *high, int word) {
        const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(low) + word);
        const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(high) + word);
        return _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1);
    }

    template <int K, int T, bool Narrow>
    static SEEDDELTA_INLINE __m512i state(const __m512i *words) {
        constexpr int word = K * T / 16;
        constexpr int shift = K * T % 16;
        if constexpr (shift == 0) {
            return words[word];
        } else if constexpr (Narrow && shift >= 12) {
            return _mm512_srli_epi16(words[word + 1], 16 - shift);
        } else {
            return _mm512_shldi_epi16(words[word], words[word + 1], shift);
        }
    }

    template <int K, int V, bool Narrow, int T>
    static SEEDDELTA_INLINE __m512i two_columns(const __m512i *words, const Tables &c) {
        if constexpr (V == 1) {
            return values(_mm512_mullo_epi16(state<K, T, Narrow>(words), c.multiplier0),
                          _mm512_mullo_epi16(state<K, T + 1, Narrow>(words), c.multiplier0), c);
        } else {
            const __m512i s = state<K, T / 2, Narrow>(words);
            return values(_mm512_mullo_epi16(s, c.multiplier0), _mm512_mullo_epi16(s, c.multiplier1), c);
        }
    }

    static SEEDDELTA_INLINE __m512i values(__m512i h0, __m512i h1, const Tables &c) {
        // The high bytes of h0 go below those of h1; then the look-up of Ops, 64 bytes at a time.
        const __m512i p = _mm512_mask_shuffle_epi8(h1, 0x5555555555555555, h0, c.odd_bytes);
        return _mm512_add_epi8(_mm512_permutexvar_epi8(_mm512_srli_epi16(p, 4), c.table1),
                               _mm512_permutexvar_epi8(p, c.table2));
    }

    template <int K, int V, bool Narrow, int Quad = 0>
    static SEEDDELTA_INLINE void chunk(const __m512i *words, const Tables &c, const int8_t *q, __m512i &low,
                                       __m512i &high) {
        const __m512i first = two_columns<K, V, Narrow, 4 * Quad>(words, c);
        const __m512i second = two_columns<K, V, Narrow, 4 * Quad + 2>(words, c);
        int32_t bits;
        __builtin_memcpy(&bits, q + 4 * Quad, 4);
        const __m512i x = _mm512_set1_epi32(bits);
        low = _mm512_dpbusd_epi32(low, _mm512_unpacklo_epi16(first, second), x);
        high = _mm512_dpbusd_epi32(high, _mm512_unpackhi_epi16(first, second), x);
        if constexpr (Quad + 1 < 4 * V) {
            chunk<K, V, Narrow, Quad + 1>(words, c, q, low, high);
        }
    }

    // Into the second cache when the first is too small for what comes before them.
    template <int Lines>
    static SEEDDELTA_INLINE void prefetch_lines(const char *from, bool near) {
        if (near) {
            for (int line = 0; line < Lines; ++line) {
                __builtin_prefetch(from + kLineBytes * line);
            }
        } else {
            for (int line = 0; line < Lines; ++line) {
                __builtin_prefetch(from + kLineBytes * line, 0, 2);
            }
        }
    }

    static SEEDDELTA_INLINE __m512 add_group(__m512 acc, __m512i sums, __m512 scale) {
        return _mm512_add_ps(acc, _mm512_mul_ps(_mm512_cvtepi32_ps(sums), scale));
    }

    template <int K, int V, bool Narrow>
    [[gnu::noinline]] static void multiply_two_kv(const seeddelta_ctx &ctx, int64_t tile, const Activations &a,
                                                  float (*acc)[kTileRows]) {
        constexpr int64_t chunks_a_group = kGroup / (16 * V);
        const Tables c(ctx);
        const uint16_t *low = ctx.codes + tile * ctx.words() * kTileRows;
        const uint16_t *high = low + ctx.words() * kTileRows;
        const int8_t *q = a.q;
        // Two streams are more than the hardware's prefetcher follows. The tiles of the next pair lie behind those of
        // this one: in the order of the memory they are one.
        const char *ahead = reinterpret_cast<const char *>(high) + kCodesAhead;
        const bool near = codes_lead(ctx.tile_bytes()) <= kNearBytes;
        __m512 lo_total = _mm512_setzero_ps();
        __m512 hi_total = _mm512_setzero_ps();
        int64_t chunks = ctx.steps() / 16;
        __m512i words[K + 1];
        words[K] = load(low, high, 0);
        for (int64_t group = 0; chunks > 0; ++group) {
            __m512i lo_sum = _mm512_set1_epi32(a.bias[group]);
            __m512i hi_sum = lo_sum;
            const int64_t count = chunks < chunks_a_group ? chunks : chunks_a_group;
            for (int64_t i = 0; i < count; ++i) {
                prefetch_lines<K>(ahead, near);
                ahead += kLineBytes * K;
                words[0] = words[K]; // the last state of a chunk ends in the first word of the next
                for (int w = 1; w <= K; ++w) {
                    words[w] = load(low, high, w);
                }
                chunk<K, V, Narrow>(words, c, q, lo_sum, hi_sum);
                low += K * kTileRows;
                high += K * kTileRows;
                q += 16 * V;
            }
            chunks -= count;
            const __m512 scale = _mm512_set1_ps(a.scale[group]);
            lo_total = add_group(lo_total, lo_sum, scale);
            hi_total = add_group(hi_total, hi_sum, scale);
        }
        Half::store_rows(_mm512_castps512_ps256(lo_total), _mm512_castps512_ps256(hi_total), acc[0]);
        Half::store_rows(_mm512_extractf32x8_ps(lo_total, 1), _mm512_extractf32x8_ps(hi_total, 1), acc[1]);
    }

    static void multiply_codes(const seeddelta_ctx &ctx, int64_t tile, int64_t count, const Activations &a,
                               uint8_t *panel, float (*acc)[kTileRows]) {
        if (count < 2) {
            Half::multiply_codes(ctx, tile, count, a, panel, acc);
        } else {
            with_rate(ctx, [&]<int K, int V, bool Narrow>() { multiply_two_kv<K, V, Narrow>(ctx, tile, a, acc); });
        }
    }
};

} // namespace
} // namespace seeddelta
