// AVX-512BW's words for tile_256.hpp, shared by the units with and without VNNI. Include inside an instruction-set unit
// only.
#pragma once
#include "simd/words_avx2.hpp"

namespace seeddelta {
namespace {

// Words of Tile256, but for `dot`.
struct WordsAvx512 : WordsAvx2 {
    static constexpr int64_t kTokens = 8;

    static SEEDDELTA_INLINE __m256i high_bytes(__m256i h0, __m256i h1) {
        // (mask & h1) | (~mask & (h0 >> 8))
        return _mm256_ternarylogic_epi32(_mm256_srli_epi16(h0, 8), h1, _mm256_set1_epi16(static_cast<short>(0xFF00)),
                                         0xD8);
    }
};

} // namespace
} // namespace seeddelta
