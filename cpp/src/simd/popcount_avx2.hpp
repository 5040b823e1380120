// Bits of a bitmap by look-up of nibbles (PSHUFB; Mula, Kurz, Lemire 2018). Include inside an instruction-set unit
// only.
#pragma once
#include <immintrin.h>

#include "simd/columns_scalar.hpp"

namespace seeddelta {
namespace {

inline int64_t popcount_avx2(const uint64_t *words, int64_t n) {
    const __m256i table = _mm256_setr_epi8(0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4, 0, 1, 1, 2, 1, 2, 2, 3, 1, 2,
                                           2, 3, 2, 3, 3, 4);
    const __m256i low = _mm256_set1_epi8(15);
    __m256i sum = _mm256_setzero_si256();
    int64_t i = 0;
    for (; i + 4 <= n; i += 4) {
        const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(words + i));
        const __m256i bits =
            _mm256_add_epi8(_mm256_shuffle_epi8(table, _mm256_and_si256(v, low)),
                            _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(v, 4), low)));
        sum = _mm256_add_epi64(sum, _mm256_sad_epu8(bits, _mm256_setzero_si256()));
    }
    alignas(32) int64_t four[4];
    _mm256_store_si256(reinterpret_cast<__m256i *>(four), sum);
    return four[0] + four[1] + four[2] + four[3] + popcount_scalar(words + i, n - i);
}

} // namespace
} // namespace seeddelta
