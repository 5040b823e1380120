// Words of the products over columns, 512 bits. Include inside an instruction-set unit only.
#pragma once
#include <immintrin.h>

#include "simd/columns.hpp"

namespace seeddelta {
namespace {

struct ColumnsAvx512 {
    static constexpr int64_t kTokens = 6;
    static constexpr int64_t kRegisters = 4;
    using F = xsimd::batch<float, xsimd::avx512bw>;
    using I = xsimd::batch<int32_t, xsimd::avx512bw>;
    struct Pair {
        __m512i low, high;
    };

    static SEEDDELTA_INLINE F half(const uint16_t *p) {
        return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p)));
    }
    // Inside 128 bits: outputs 8i .. 8i+3, then 8i+4 .. 8i+7
    static SEEDDELTA_INLINE Pair pair(const int8_t *a, const int8_t *b) {
        const __m512i wide_a = _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(a)));
        const __m512i wide_b = _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(b)));
        return {_mm512_unpacklo_epi16(wide_a, wide_b), _mm512_unpackhi_epi16(wide_a, wide_b)};
    }
    static SEEDDELTA_INLINE __m512i factor(int16_t a, int16_t b) {
        return _mm512_set1_epi32(static_cast<int>(static_cast<uint32_t>(static_cast<uint16_t>(a)) |
                                                  static_cast<uint32_t>(static_cast<uint16_t>(b)) << 16));
    }
    static SEEDDELTA_INLINE __m512i factor(const int16_t *two) {
        int32_t bits;
        __builtin_memcpy(&bits, two, 4);
        return _mm512_set1_epi32(bits);
    }
    static SEEDDELTA_INLINE void add(I &low, I &high, Pair p, __m512i factor) {
        low = _mm512_add_epi32(low, _mm512_madd_epi16(p.low, factor));
        high = _mm512_add_epi32(high, _mm512_madd_epi16(p.high, factor));
    }
    static SEEDDELTA_INLINE void order(I &low, I &high) {
        const __m512i a = low;
        const __m512i b = high;
        low = _mm512_permutex2var_epi64(a, _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11), b);
        high = _mm512_permutex2var_epi64(a, _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15), b);
    }
};

} // namespace
} // namespace seeddelta
