// The words of kernels on SSE2, 128 bits, for columns.hpp; see words_avx2.hpp. Include inside an instruction-set unit
// only.
#pragma once
#include <emmintrin.h>

#include "simd/inline.hpp"

namespace seeddelta {
namespace {

struct WordsSse2 {
    using V = __m128i;
    using F = __m128;

    static SEEDDELTA_INLINE V repeat(int32_t bits) { return _mm_set1_epi32(bits); }
    // half_to_float of format/float16.hpp for finite weights
    static SEEDDELTA_INLINE F half(const uint16_t *p) {
        const V h = _mm_unpacklo_epi16(_mm_loadl_epi64(reinterpret_cast<const V *>(p)), _mm_setzero_si128());
        const V sign = _mm_slli_epi32(_mm_and_si128(h, _mm_set1_epi32(0x8000)), 16);
        const V bits = _mm_and_si128(h, _mm_set1_epi32(0x7FFF));
        const V normal = _mm_add_epi32(_mm_slli_epi32(bits, 13), _mm_set1_epi32(0x38000000));
        const V small = _mm_castps_si128(_mm_mul_ps(_mm_cvtepi32_ps(bits), _mm_set1_ps(0x1p-24F)));
        const V is_small = _mm_cmplt_epi32(bits, _mm_set1_epi32(0x0400));
        const V magnitude = _mm_or_si128(_mm_and_si128(is_small, small), _mm_andnot_si128(is_small, normal));
        return _mm_castsi128_ps(_mm_or_si128(magnitude, sign));
    }
    static SEEDDELTA_INLINE V widen(const int8_t *p) {
        const V bytes = _mm_loadl_epi64(reinterpret_cast<const V *>(p));
        return _mm_srai_epi16(_mm_unpacklo_epi8(bytes, bytes), 8);
    }
    static SEEDDELTA_INLINE V dot_pairs(V sums, V values, V x) {
        return _mm_add_epi32(sums, _mm_madd_epi16(values, x));
    }
    static SEEDDELTA_INLINE void interleave(V a, V b, V *out) {
        out[0] = _mm_unpacklo_epi16(a, b);
        out[1] = _mm_unpackhi_epi16(a, b);
    }
    template <class R>
    static SEEDDELTA_INLINE void order(R *) {} // interleave keeps it
};

} // namespace
} // namespace seeddelta
