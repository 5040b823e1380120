// The words of columns.hpp on AVX2, 256 bits. Include inside an instruction-set unit only.
#pragma once
#include <immintrin.h>

#include "simd/inline.hpp"

namespace seeddelta {
namespace {

struct WordsAvx2 {
    using V = __m256i;
    using F = __m256;

    static SEEDDELTA_INLINE V repeat(int32_t bits) { return _mm256_set1_epi32(bits); }
    static SEEDDELTA_INLINE F half(const uint16_t *p) {
        return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p)));
    }
    static SEEDDELTA_INLINE V widen(const int8_t *p) {
        return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p)));
    }
    static SEEDDELTA_INLINE V dot_pairs(V sums, V values, V x) {
        return _mm256_add_epi32(sums, _mm256_madd_epi16(values, x));
    }
    // Lanes of a and b in turns, inside 128 bits.
    static SEEDDELTA_INLINE void interleave(V a, V b, V *out) {
        out[0] = _mm256_unpacklo_epi16(a, b);
        out[1] = _mm256_unpackhi_epi16(a, b);
    }
    // What interleave has made, in the order of the outputs.
    static SEEDDELTA_INLINE void order(V *r) {
        const V a = r[0];
        const V b = r[1];
        r[0] = _mm256_permute2x128_si256(a, b, 0x20);
        r[1] = _mm256_permute2x128_si256(a, b, 0x31);
    }
};

} // namespace
} // namespace seeddelta
