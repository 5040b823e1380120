// AVX2's words for tile_256.hpp, shared by the units with and without VNNI. Include inside an instruction-set unit
// only.
#pragma once
#include <immintrin.h>

#include "simd/inline.hpp"

namespace seeddelta {
namespace {

// Words of Tile256, but for `dot`.
struct WordsAvx2 {
    static constexpr int64_t kTokens = 4;

    template <int Shift>
    static SEEDDELTA_INLINE __m256i concat(__m256i a, __m256i b) {
        return _mm256_or_si256(_mm256_slli_epi16(a, Shift), _mm256_srli_epi16(b, 16 - Shift));
    }
    static SEEDDELTA_INLINE __m256i high_bytes(__m256i h0, __m256i h1) {
        return _mm256_blendv_epi8(_mm256_srli_epi16(h0, 8), h1, _mm256_set1_epi16(static_cast<short>(0xFF00)));
    }
    static SEEDDELTA_INLINE __m256i lookup(__m256i p, __m256i table1, __m256i table2) {
        const __m256i nibble = _mm256_set1_epi8(15);
        return _mm256_add_epi8(_mm256_shuffle_epi8(table1, _mm256_and_si256(_mm256_srli_epi16(p, 4), nibble)),
                               _mm256_shuffle_epi8(table2, _mm256_and_si256(p, nibble)));
    }
};

} // namespace
} // namespace seeddelta
