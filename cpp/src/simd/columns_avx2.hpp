// Words of the products over columns, 256 bits. Include inside an instruction-set unit only.
#pragma once
#include <immintrin.h>

#include "simd/columns.hpp"

namespace seeddelta {
namespace {

struct ColumnsAvx2 {
    static constexpr int64_t kTokens = 4;
    static constexpr int64_t kRegisters = 2;
    using F = xsimd::batch<float, xsimd::avx2>;
    using I = xsimd::batch<int32_t, xsimd::avx2>;
    struct Pair {
        __m256i low, high;
    };

    static SEEDDELTA_INLINE F half(const uint16_t *p) {
        return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p)));
    }
    // Inside 128 bits: outputs 0-3 and 8-11, then 4-7 and 12-15
    static SEEDDELTA_INLINE Pair pair(const int8_t *a, const int8_t *b) {
        const __m256i wide_a = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i *>(a)));
        const __m256i wide_b = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i *>(b)));
        return {_mm256_unpacklo_epi16(wide_a, wide_b), _mm256_unpackhi_epi16(wide_a, wide_b)};
    }
    static SEEDDELTA_INLINE __m256i factor(int16_t a, int16_t b) {
        return _mm256_set1_epi32(static_cast<int>(static_cast<uint32_t>(static_cast<uint16_t>(a)) |
                                                  static_cast<uint32_t>(static_cast<uint16_t>(b)) << 16));
    }
    static SEEDDELTA_INLINE __m256i factor(const int16_t *two) {
        int32_t bits;
        __builtin_memcpy(&bits, two, 4);
        return _mm256_set1_epi32(bits);
    }
    static SEEDDELTA_INLINE void add(I &low, I &high, Pair p, __m256i factor) {
        low = _mm256_add_epi32(low, _mm256_madd_epi16(p.low, factor));
        high = _mm256_add_epi32(high, _mm256_madd_epi16(p.high, factor));
    }
    static SEEDDELTA_INLINE void order(I &low, I &high) {
        const __m256i a = low;
        const __m256i b = high;
        low = _mm256_permute2x128_si256(a, b, 0x20);
        high = _mm256_permute2x128_si256(a, b, 0x31);
    }
};

} // namespace
} // namespace seeddelta
