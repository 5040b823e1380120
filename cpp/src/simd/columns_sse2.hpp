// Words of the products over columns, 128 bits of the x86-64 baseline. Include inside an instruction-set unit only.
#pragma once
#include <emmintrin.h>

#include "simd/columns.hpp"

namespace seeddelta {
namespace {

struct ColumnsSse2 {
    static constexpr int64_t kTokens = 4;
    static constexpr int64_t kRegisters = 2;
    using F = xsimd::batch<float, xsimd::sse2>;
    using I = xsimd::batch<int32_t, xsimd::sse2>;
    struct Pair {
        __m128i low, high;
    };

    // half_to_float of format/float16.hpp for finite weights
    static SEEDDELTA_INLINE F half(const uint16_t *p) {
        const __m128i h =
            _mm_unpacklo_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(p)), _mm_setzero_si128());
        const __m128i sign = _mm_slli_epi32(_mm_and_si128(h, _mm_set1_epi32(0x8000)), 16);
        const __m128i bits = _mm_and_si128(h, _mm_set1_epi32(0x7FFF));
        const __m128i normal = _mm_add_epi32(_mm_slli_epi32(bits, 13), _mm_set1_epi32(0x38000000));
        const __m128i small = _mm_castps_si128(_mm_mul_ps(_mm_cvtepi32_ps(bits), _mm_set1_ps(0x1p-24F)));
        const __m128i is_small = _mm_cmplt_epi32(bits, _mm_set1_epi32(0x0400));
        const __m128i magnitude = _mm_or_si128(_mm_and_si128(is_small, small), _mm_andnot_si128(is_small, normal));
        return _mm_castsi128_ps(_mm_or_si128(magnitude, sign));
    }
    static SEEDDELTA_INLINE __m128i widen(const int8_t *p) {
        const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i *>(p));
        return _mm_srai_epi16(_mm_unpacklo_epi8(bytes, bytes), 8);
    }
    static SEEDDELTA_INLINE Pair pair(const int8_t *a, const int8_t *b) {
        const __m128i wide_a = widen(a);
        const __m128i wide_b = widen(b);
        return {_mm_unpacklo_epi16(wide_a, wide_b), _mm_unpackhi_epi16(wide_a, wide_b)};
    }
    static SEEDDELTA_INLINE __m128i factor(int16_t a, int16_t b) {
        return _mm_set1_epi32(static_cast<int>(static_cast<uint32_t>(static_cast<uint16_t>(a)) |
                                               static_cast<uint32_t>(static_cast<uint16_t>(b)) << 16));
    }
    static SEEDDELTA_INLINE __m128i factor(const int16_t *two) {
        int32_t bits;
        __builtin_memcpy(&bits, two, 4);
        return _mm_set1_epi32(bits);
    }
    static SEEDDELTA_INLINE void add(I &low, I &high, Pair p, __m128i factor) {
        low = _mm_add_epi32(low, _mm_madd_epi16(p.low, factor));
        high = _mm_add_epi32(high, _mm_madd_epi16(p.high, factor));
    }
    static SEEDDELTA_INLINE void order(I &, I &) {}
};

} // namespace
} // namespace seeddelta
