// The words of columns.hpp on AVX-512, 512 bits. Include inside an instruction-set unit only.
#pragma once
#include <immintrin.h>

#include "simd/inline.hpp"

namespace seeddelta {
namespace {

struct WordsAvx512 {
    using V = __m512i;
    using F = __m512;

    static SEEDDELTA_INLINE V repeat(int32_t bits) { return _mm512_set1_epi32(bits); }
    static SEEDDELTA_INLINE F half(const uint16_t *p) {
        return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p)));
    }
    static SEEDDELTA_INLINE V widen(const int8_t *p) {
        return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p)));
    }
    static SEEDDELTA_INLINE V dot_pairs(V sums, V values, V x) {
        return _mm512_add_epi32(sums, _mm512_madd_epi16(values, x));
    }
    // Lanes of a and b in turns, inside 128 bits.
    static SEEDDELTA_INLINE void interleave(V a, V b, V *out) {
        out[0] = _mm512_unpacklo_epi16(a, b);
        out[1] = _mm512_unpackhi_epi16(a, b);
    }
    // What interleave has made, in the order of the outputs.
    static SEEDDELTA_INLINE void order(V *r) {
        const V a = r[0];
        const V b = r[1];
        r[0] = _mm512_permutex2var_epi64(a, _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11), b);
        r[1] = _mm512_permutex2var_epi64(a, _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15), b);
    }
};

} // namespace
} // namespace seeddelta
