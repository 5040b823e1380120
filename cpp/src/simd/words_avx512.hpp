// The words of kernels on AVX-512. Include inside an instruction-set unit only. A unit adds `dot`, see words_avx2.hpp.
#pragma once
#include "simd/words_avx2.hpp"

namespace seeddelta {
namespace {

// 256 bits, for units without VBMI: VPTERNLOG and twice the registers.
struct WordsAvx512 : WordsAvx2 {
    static constexpr int64_t kTokens = 8;

    static SEEDDELTA_INLINE V high_bytes(V a, V b) {
        // (mask & b) | (~mask & (a >> 8))
        return _mm256_ternarylogic_epi32(_mm256_srli_epi16(a, 8), b, _mm256_set1_epi16(static_cast<short>(0xFF00)),
                                         0xD8);
    }
};

// 512 bits
struct Words512 {
    using V = __m512i;
    using F = __m512;
    using Multiplier = V;

    static SEEDDELTA_INLINE V load(const void *p) { return _mm512_loadu_si512(p); }
    static SEEDDELTA_INLINE F load_floats(const float *p) { return _mm512_loadu_ps(p); }
    static SEEDDELTA_INLINE void store_floats(float *p, F f) { _mm512_storeu_ps(p, f); }
    static SEEDDELTA_INLINE F no_floats() { return _mm512_setzero_ps(); }
    static SEEDDELTA_INLINE V repeat(int32_t bits) { return _mm512_set1_epi32(bits); }
    static SEEDDELTA_INLINE V add_bytes(V a, V b) { return _mm512_add_epi8(a, b); }

    static SEEDDELTA_INLINE V table(const int8_t *t) {
        return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i *>(t)));
    }

    template <int Shift>
    static SEEDDELTA_INLINE V shift_right(V a) {
        return _mm512_srli_epi16(a, Shift);
    }
    static SEEDDELTA_INLINE Multiplier multiplier(uint16_t m) { return _mm512_set1_epi16(static_cast<short>(m)); }
    static SEEDDELTA_INLINE V multiply(V states, Multiplier m) { return _mm512_mullo_epi16(states, m); }
    static SEEDDELTA_INLINE V high_bytes(V a, V b) {
        const V odd = _mm512_broadcast_i32x4(_mm_set_epi8(15, 15, 13, 13, 11, 11, 9, 9, 7, 7, 5, 5, 3, 3, 1, 1));
        return _mm512_mask_shuffle_epi8(b, 0x5555555555555555, a, odd);
    }
    static SEEDDELTA_INLINE void interleave(V a, V b, V *out) {
        out[0] = _mm512_unpacklo_epi16(a, b);
        out[1] = _mm512_unpackhi_epi16(a, b);
    }

    static SEEDDELTA_INLINE F half(const uint16_t *p) {
        return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p)));
    }
    static SEEDDELTA_INLINE V widen(const int8_t *p) {
        return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p)));
    }
    static SEEDDELTA_INLINE V dot_pairs(V sums, V values, V x) {
        return _mm512_add_epi32(sums, _mm512_madd_epi16(values, x));
    }

    static SEEDDELTA_INLINE V start(int32_t bias) { return repeat(bias); }
    static SEEDDELTA_INLINE V four(const int8_t *q) {
        int32_t bits;
        __builtin_memcpy(&bits, q, 4);
        return repeat(bits);
    }
    static SEEDDELTA_INLINE F add_group(F total, V sums, float scale) {
        return _mm512_add_ps(total, _mm512_mul_ps(_mm512_cvtepi32_ps(sums), _mm512_set1_ps(scale)));
    }
    template <class R>
    static SEEDDELTA_INLINE void order(R *r) {
        const V a = __builtin_bit_cast(V, r[0]);
        const V b = __builtin_bit_cast(V, r[1]);
        r[0] = __builtin_bit_cast(R, _mm512_permutex2var_epi64(a, _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11), b));
        r[1] = __builtin_bit_cast(R, _mm512_permutex2var_epi64(a, _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15), b));
    }
};

#if defined(__AVX512VBMI__) && defined(__AVX512VBMI2__) && defined(__AVX512VNNI__)
// 256 bits. The tables repeat every 16 bytes and VPERMB looks at 5 index bits (at 6 in 512 bits): what stands above the
// four does not matter.
struct WordsVbmi : WordsAvx512 {
    template <int Shift>
    static SEEDDELTA_INLINE V concat(V a, V b) {
        return _mm256_shldi_epi16(a, b, Shift);
    }
    static SEEDDELTA_INLINE V look_up(V bytes, V first, V second) {
        return add_bytes(_mm256_permutexvar_epi8(_mm256_srli_epi16(bytes, 4), first),
                         _mm256_permutexvar_epi8(bytes, second));
    }
    static SEEDDELTA_INLINE V dot(V sums, V values, V x) { return _mm256_dpbusd_epi32(sums, values, x); }
};

// 512 bits: the 16 rows of two tiles side by side.
struct WordsVbmi512 : Words512 {
    static constexpr int kTiles = 2;
    static constexpr int kParts = 1;
    static constexpr int kBias = kValueBias;
    static constexpr bool kFetchesUnits = true;

    static SEEDDELTA_INLINE V look_up(V bytes, V first, V second) {
        return add_bytes(_mm512_permutexvar_epi8(_mm512_srli_epi16(bytes, 4), first),
                         _mm512_permutexvar_epi8(bytes, second));
    }
    static SEEDDELTA_INLINE V load_states(const uint16_t *const *words, int64_t at) {
        return _mm512_inserti64x4(_mm512_castsi256_si512(WordsAvx2::load(words[0] + at)),
                                  WordsAvx2::load(words[1] + at), 1);
    }
    template <int Shift>
    static SEEDDELTA_INLINE V concat(V a, V b) {
        return _mm512_shldi_epi16(a, b, Shift);
    }
    static SEEDDELTA_INLINE V dot(V sums, V values, V x) { return _mm512_dpbusd_epi32(sums, values, x); }
};
#endif

} // namespace
} // namespace seeddelta
