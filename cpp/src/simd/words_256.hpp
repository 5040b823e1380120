// The words of kernels in 256 bits: of lanes.hpp, lane_columns.hpp, columns.hpp and lane_search.hpp. Include inside an
// instruction-set unit only. The values plus kValueBias are unsigned bytes below 128: VPMADDUBSW does not saturate.
#pragma once
#include <immintrin.h>

#include "format/activations.hpp"
#include "simd/inline.hpp"
#include "simd/lane_words.hpp"

namespace seeddelta {
namespace {

// So many bytes: 4, 8, 12 or 16.
template <int Bytes>
SEEDDELTA_INLINE __m128i bytes_at(const uint8_t *p) {
    if constexpr (Bytes == 16) {
        return _mm_loadu_si128(reinterpret_cast<const __m128i *>(p));
    } else {
        int32_t part[3] = {};
        __builtin_memcpy(part, p, Bytes);
        return _mm_setr_epi32(part[0], part[1], part[2], 0);
    }
}

// Four activations as the operand of an instruction.
typedef int32_t FourInputs [[gnu::may_alias]];

// 256 bits
struct Words256 : OptionalWords {
    using V = __m256i;
    using F = __m256;
    static constexpr int kParts = 2;
    static constexpr int64_t kDirect = 8;
    static constexpr int kBias = kValueBias;
    // the sixteen registers hold the sums of one part for more than two tokens
    static constexpr int direct_parts(int n) { return n > 2 ? 1 : 2; }
    static constexpr int tiles(int) { return 1; }
    static constexpr bool packed(int) { return false; }

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
    // VPSHUFB gives 0 where the highest bit of an index is set
    static constexpr bool kTakes = true;
    template <int Bit>
    static SEEDDELTA_INLINE V add_bit(V values, V plane, V amount) {
        return _mm256_add_epi8(values, _mm256_shuffle_epi8(amount, _mm256_slli_epi16(plane, 7 - Bit)));
    }
    static SEEDDELTA_INLINE V start(int32_t bias) { return _mm256_set1_epi32(bias); }
    static SEEDDELTA_INLINE V four(const int8_t *q) {
        int32_t bits;
        __builtin_memcpy(&bits, q, 4);
        return _mm256_set1_epi32(bits);
    }
    // GCC would keep some sums in memory as well, and a store and a load take longer than a step.
    static SEEDDELTA_INLINE void keep(V &sum) { asm("" : "+x"(sum)); }
    static SEEDDELTA_INLINE V dot(V sum, V values, V x) {
#if defined(__AVXVNNI__)
        return _mm256_dpbusd_avx_epi32(sum, values, x);
#else
        return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(values, x), _mm256_set1_epi16(1)));
#endif
    }
    static SEEDDELTA_INLINE void store(uint8_t *out, V v) { _mm256_storeu_si256(reinterpret_cast<V *>(out), v); }
    static SEEDDELTA_INLINE F no_floats() { return _mm256_setzero_ps(); }
    static SEEDDELTA_INLINE F load_floats(const float *p) { return _mm256_loadu_ps(p); }
    static SEEDDELTA_INLINE F add_group(F total, V sum, float scale) {
        return _mm256_add_ps(total, _mm256_mul_ps(_mm256_cvtepi32_ps(sum), _mm256_set1_ps(scale)));
    }
    static SEEDDELTA_INLINE void store_rows(float *out, F total) { _mm256_storeu_ps(out, total); }

    // For lane_columns.hpp
    static constexpr int kLanes = 2;
    // In memory: GCC would store a sum twice, where it keeps it and where it had it in a register.
    static SEEDDELTA_INLINE void hold(V &sum) { asm("" : "+m"(sum)); }
    static SEEDDELTA_INLINE void zip8(V a, V b, V &low, V &high) {
        low = _mm256_unpacklo_epi8(a, b);
        high = _mm256_unpackhi_epi8(a, b);
    }
    static SEEDDELTA_INLINE void zip16(V a, V b, V &low, V &high) {
        low = _mm256_unpacklo_epi16(a, b);
        high = _mm256_unpackhi_epi16(a, b);
    }
    template <int Bytes>
    static SEEDDELTA_INLINE V gather(const uint8_t *const *p) {
        return _mm256_inserti128_si256(_mm256_castsi128_si256(bytes_at<Bytes>(p[0])), bytes_at<Bytes>(p[1]), 1);
    }
    static SEEDDELTA_INLINE V lanes_of(const int8_t *q) {
        const __m128i two = _mm_loadl_epi64(reinterpret_cast<const __m128i *>(q));
        return _mm256_permutevar8x32_epi32(_mm256_castsi128_si256(two), _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1));
    }
    static SEEDDELTA_INLINE V fold(const V *sum) {
        return _mm256_add_epi32(_mm256_permute2x128_si256(sum[0], sum[1], 0x20),
                                _mm256_permute2x128_si256(sum[0], sum[1], 0x31));
    }

    // For columns.hpp
    static SEEDDELTA_INLINE F half(const uint16_t *p) {
        return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p)));
    }

    // For lane_search.hpp: the upper halves of products of 16 bits
    static SEEDDELTA_INLINE V upper_products(V a, V b) { return _mm256_mulhi_epu16(a, b); }
};

} // namespace
} // namespace seeddelta
