// Words of x86 for lanes.hpp. Include inside an instruction-set unit only. The values plus 64 are unsigned bytes below
// 128: VPMADDUBSW does not saturate.
#pragma once
#include <immintrin.h>

#include "simd/inline.hpp"

namespace seeddelta {
namespace {

// 256 bits; `Dot` adds the products of four neighbouring bytes, unsigned by signed, to each 32-bit lane.
template <class Dot>
struct LaneWords256 {
    using V = __m256i;
    using F = __m256;
    static constexpr int kParts = 2;
    static constexpr int kBias = 64;
    // the sixteen registers hold the sums of one part for more than two tokens
    static constexpr int direct_parts(int n) { return n > 2 ? 1 : 2; }

    static SEEDDELTA_INLINE V load(const uint8_t *p) { return _mm256_loadu_si256(reinterpret_cast<const V *>(p)); }
    static SEEDDELTA_INLINE V low(V both) { return _mm256_and_si256(both, _mm256_set1_epi8(15)); }
    static SEEDDELTA_INLINE V high(V both) {
        return _mm256_and_si256(_mm256_srli_epi16(both, 4), _mm256_set1_epi8(15));
    }
    static SEEDDELTA_INLINE V table(const int8_t *t) {
        return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i *>(t)));
    }
    // VPSHUFB takes the low four bits of an index below 128: sums of codes need no mask
    static SEEDDELTA_INLINE V look(V table, V index) { return _mm256_shuffle_epi8(table, index); }
    static SEEDDELTA_INLINE V wrap(V sum) { return sum; }
    static SEEDDELTA_INLINE V add(V a, V b) { return _mm256_add_epi8(a, b); }
    static SEEDDELTA_INLINE V start(int32_t sum) { return _mm256_set1_epi32(-kBias * sum); }
    static SEEDDELTA_INLINE V four(const int8_t *q) {
        int32_t bits;
        __builtin_memcpy(&bits, q, 4);
        return _mm256_set1_epi32(bits);
    }
    static SEEDDELTA_INLINE V dot(V sum, V values, V x) { return Dot::dot(sum, values, x); }
    static SEEDDELTA_INLINE F no_floats() { return _mm256_setzero_ps(); }
    static SEEDDELTA_INLINE F add_group(F total, V sum, float scale) {
        return _mm256_add_ps(total, _mm256_mul_ps(_mm256_cvtepi32_ps(sum), _mm256_set1_ps(scale)));
    }
    static SEEDDELTA_INLINE void store_rows(float *out, F total) { _mm256_storeu_ps(out, total); }
};

#if defined(__AVX512BW__)
// 512 bits: a whole line. Without VBMI codes are masked as with AVX2.
template <class Dot>
struct LaneWords512 {
    using V = __m512i;
    using F = __m512;
    static constexpr int kParts = 1;
    static constexpr int kBias = 64;
    static constexpr int direct_parts(int) { return 1; }

    static SEEDDELTA_INLINE V load(const uint8_t *p) { return _mm512_loadu_si512(p); }
    static SEEDDELTA_INLINE V low(V both) { return _mm512_and_si512(both, _mm512_set1_epi8(15)); }
    static SEEDDELTA_INLINE V high(V both) {
        return _mm512_and_si512(_mm512_srli_epi16(both, 4), _mm512_set1_epi8(15));
    }
    static SEEDDELTA_INLINE V table(const int8_t *t) {
        return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i *>(t)));
    }
    static SEEDDELTA_INLINE V look(V table, V index) { return _mm512_shuffle_epi8(table, index); }
    static SEEDDELTA_INLINE V wrap(V sum) { return sum; }
    static SEEDDELTA_INLINE V add(V a, V b) { return _mm512_add_epi8(a, b); }
    static SEEDDELTA_INLINE V start(int32_t sum) { return _mm512_set1_epi32(-kBias * sum); }
    static SEEDDELTA_INLINE V four(const int8_t *q) {
        int32_t bits;
        __builtin_memcpy(&bits, q, 4);
        return _mm512_set1_epi32(bits);
    }
    static SEEDDELTA_INLINE V dot(V sum, V values, V x) { return Dot::dot(sum, values, x); }
    static SEEDDELTA_INLINE F no_floats() { return _mm512_setzero_ps(); }
    static SEEDDELTA_INLINE F add_group(F total, V sum, float scale) {
        return _mm512_add_ps(total, _mm512_mul_ps(_mm512_cvtepi32_ps(sum), _mm512_set1_ps(scale)));
    }
    static SEEDDELTA_INLINE void store_rows(float *out, F total) { _mm512_storeu_ps(out, total); }
};
#endif

#if defined(__AVX512VBMI__)
// VPERMB looks at six bits of an index and the tables repeat every 16 bytes: what stands above a code does not matter,
// and sums carry upwards only.
template <class Dot>
struct LaneWordsVbmi : LaneWords512<Dot> {
    using V = __m512i;
    static SEEDDELTA_INLINE V low(V both) { return both; }
    static SEEDDELTA_INLINE V high(V both) { return _mm512_srli_epi16(both, 4); }
    static SEEDDELTA_INLINE V look(V table, V index) { return _mm512_permutexvar_epi8(index, table); }
};
#endif

} // namespace
} // namespace seeddelta
