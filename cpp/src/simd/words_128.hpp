// The words of kernels in 128 bits (SSSE3): four registers of 4 rows a line. Include inside an instruction-set unit
// only. As in words_256.hpp the values plus kValueBias are unsigned bytes below 128, so that PMADDUBSW does not
// saturate.
#pragma once
#include <tmmintrin.h>

#include "format/activations.hpp"
#include "simd/inline.hpp"
#include "simd/lane_words.hpp"

namespace seeddelta {
namespace {

struct Words128 : OptionalWords {
    static constexpr bool kHasDotBoth = true;
    using V = __m128i;
    using F = __m128;
    static constexpr int kParts = 4;
    static constexpr int64_t kDirect = 2;
    static constexpr int kBias = kValueBias;
    static constexpr int direct_parts(int n) { return n > 1 ? 1 : 2; } // what the sixteen registers hold
    static constexpr int tiles(int) { return 1; }
    static constexpr bool packed(int) { return false; }

    static SEEDDELTA_INLINE V load(const uint8_t *p) { return _mm_loadu_si128(reinterpret_cast<const V *>(p)); }
    static SEEDDELTA_INLINE V low(V both) { return _mm_and_si128(both, _mm_set1_epi8(15)); }
    static SEEDDELTA_INLINE V high(V both) { return _mm_and_si128(_mm_srli_epi16(both, 4), _mm_set1_epi8(15)); }
    static SEEDDELTA_INLINE V table(const int8_t *t) { return load(reinterpret_cast<const uint8_t *>(t)); }
    // PSHUFB takes the low four bits of an index below 128, and gives 0 where its highest bit is set
    static SEEDDELTA_INLINE V look(V table, V index) { return _mm_shuffle_epi8(table, index); }
    static SEEDDELTA_INLINE V wrap(V sum) { return sum; }
    static SEEDDELTA_INLINE V add(V a, V b) { return _mm_add_epi8(a, b); }
    static constexpr bool kTakes = true;
    template <int Bit>
    static SEEDDELTA_INLINE V add_bit(V values, V plane, V amount) {
        return _mm_add_epi8(values, _mm_shuffle_epi8(amount, _mm_slli_epi16(plane, 7 - Bit)));
    }
    static SEEDDELTA_INLINE V start(int32_t bias) { return _mm_set1_epi32(bias); }
    static SEEDDELTA_INLINE V four(const int8_t *q) {
        int32_t bits;
        __builtin_memcpy(&bits, q, 4);
        return _mm_set1_epi32(bits);
    }
    static SEEDDELTA_INLINE void keep(V &sum) { asm("" : "+x"(sum)); }
    static SEEDDELTA_INLINE V dot(V sum, V values, V x) {
        return _mm_add_epi32(sum, _mm_madd_epi16(_mm_maddubs_epi16(values, x), _mm_set1_epi16(1)));
    }
    // Two dot() whose products are added in 16 bits.
    static SEEDDELTA_INLINE V dot_both(V sum, V v0, V v1, V x0, V x1) {
        const V four = _mm_add_epi16(_mm_maddubs_epi16(v0, x0), _mm_maddubs_epi16(v1, x1));
        return _mm_add_epi32(sum, _mm_madd_epi16(four, _mm_set1_epi16(1)));
    }
    static SEEDDELTA_INLINE void store(uint8_t *out, V v) { _mm_storeu_si128(reinterpret_cast<V *>(out), v); }
    static SEEDDELTA_INLINE F no_floats() { return _mm_setzero_ps(); }
    static SEEDDELTA_INLINE F load_floats(const float *p) { return _mm_loadu_ps(p); }
    static SEEDDELTA_INLINE F add_group(F total, V sum, float scale) {
        return _mm_add_ps(total, _mm_mul_ps(_mm_cvtepi32_ps(sum), _mm_set1_ps(scale)));
    }
    static SEEDDELTA_INLINE void store_rows(float *out, F total) { _mm_storeu_ps(out, total); }

    // For lane_columns.hpp
    static constexpr int kLanes = 1;
    // In memory: GCC would store a sum twice, where it keeps it and where it had it in a register.
    static SEEDDELTA_INLINE void hold(V &sum) { asm("" : "+m"(sum)); }
    static SEEDDELTA_INLINE void zip8(V a, V b, V &low, V &high) {
        low = _mm_unpacklo_epi8(a, b);
        high = _mm_unpackhi_epi8(a, b);
    }
    static SEEDDELTA_INLINE void zip16(V a, V b, V &low, V &high) {
        low = _mm_unpacklo_epi16(a, b);
        high = _mm_unpackhi_epi16(a, b);
    }
    template <int Bytes>
    static SEEDDELTA_INLINE V gather(const uint8_t *const *p) {
        uint8_t part[16] = {};
        __builtin_memcpy(part, p[0], Bytes);
        return load(part);
    }
    static SEEDDELTA_INLINE V lanes_of(const int8_t *q) { return four(q); }
    static SEEDDELTA_INLINE V fold(const V *sum) { return *sum; }

    // For columns.hpp
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

    // For lane_search.hpp: the upper halves of products of 16 bits
    static SEEDDELTA_INLINE V upper_products(V a, V b) { return _mm_mulhi_epu16(a, b); }
};

} // namespace
} // namespace seeddelta
