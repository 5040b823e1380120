// The words of kernels on AVX2, 256 bits: what they need of an instruction set. Include inside an instruction-set unit
// only. A unit adds `dot` (sums of 32 bits plus the products of four neighbouring bytes, unsigned by signed), which
// VNNI has.
#pragma once
#include <immintrin.h>

#include "format/trellis.hpp"
#include "simd/inline.hpp"

namespace seeddelta {
namespace {

struct WordsAvx2 {
    using V = __m256i; // lanes of 8, 16 or 32 bits
    using F = __m256;
    using Multiplier = V;
    static constexpr int64_t kTokens = 4;       // that a panel is multiplied with at a time
    static constexpr int kTiles = 1;            // whose states are in a register
    static constexpr int kParts = 1;            // registers of the states of 16 rows
    static constexpr int kBias = kValueBias;    // of the values in `dot`
    static constexpr bool kFetchesUnits = true; // ahead of the columns' products

    static SEEDDELTA_INLINE V load(const void *p) { return _mm256_loadu_si256(static_cast<const V *>(p)); }
    static SEEDDELTA_INLINE void store(void *p, V v) { _mm256_storeu_si256(static_cast<V *>(p), v); }
    static SEEDDELTA_INLINE F load_floats(const float *p) { return _mm256_loadu_ps(p); }
    static SEEDDELTA_INLINE void store_floats(float *p, F f) { _mm256_storeu_ps(p, f); }
    static SEEDDELTA_INLINE F no_floats() { return _mm256_setzero_ps(); }
    static SEEDDELTA_INLINE V repeat(int32_t bits) { return _mm256_set1_epi32(bits); }
    static SEEDDELTA_INLINE V add_bytes(V a, V b) { return _mm256_add_epi8(a, b); }

    // Tables of 16 bytes
    static SEEDDELTA_INLINE V table(const int8_t *t) {
        return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i *>(t)));
    }
    // first[high four bits] + second[low four bits] of every byte
    static SEEDDELTA_INLINE V look_up(V bytes, V first, V second) {
        const V nibble = _mm256_set1_epi8(15);
        return add_bytes(_mm256_shuffle_epi8(first, _mm256_and_si256(_mm256_srli_epi16(bytes, 4), nibble)),
                         _mm256_shuffle_epi8(second, _mm256_and_si256(bytes, nibble)));
    }

    // States, lanes of 16 bits; `words` are kTiles pointers
    static SEEDDELTA_INLINE V load_states(const uint16_t *const *words, int64_t at) { return load(words[0] + at); }
    template <int Shift>
    static SEEDDELTA_INLINE V concat(V a, V b) {
        return _mm256_or_si256(_mm256_slli_epi16(a, Shift), _mm256_srli_epi16(b, 16 - Shift));
    }
    template <int Shift>
    static SEEDDELTA_INLINE V shift_right(V a) {
        return _mm256_srli_epi16(a, Shift);
    }
    static SEEDDELTA_INLINE Multiplier multiplier(uint16_t m) { return _mm256_set1_epi16(static_cast<short>(m)); }
    static SEEDDELTA_INLINE V multiply(V states, Multiplier m) { return _mm256_mullo_epi16(states, m); }
    // the high bytes of a below those of b
    static SEEDDELTA_INLINE V high_bytes(V a, V b) {
        return _mm256_blendv_epi8(_mm256_srli_epi16(a, 8), b, _mm256_set1_epi16(static_cast<short>(0xFF00)));
    }
    // Lanes of a and b in turns, inside 128 bits: rows 0-3 and 8-11, then 4-7 and 12-15.
    static SEEDDELTA_INLINE void interleave(V a, V b, V *out) {
        out[0] = _mm256_unpacklo_epi16(a, b);
        out[1] = _mm256_unpackhi_epi16(a, b);
    }

    // Columns without trellis, see columns.hpp
    static SEEDDELTA_INLINE F half(const uint16_t *p) {
        return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p)));
    }
    static SEEDDELTA_INLINE V widen(const int8_t *p) {
        return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p)));
    }
    static SEEDDELTA_INLINE V dot_pairs(V sums, V values, V x) {
        return _mm256_add_epi32(sums, _mm256_madd_epi16(values, x));
    }

    // Sums, lanes of 32 bits
    static SEEDDELTA_INLINE V start(int32_t bias) { return repeat(bias); }
    static SEEDDELTA_INLINE V four(const int8_t *q) {
        int32_t bits;
        __builtin_memcpy(&bits, q, 4);
        return repeat(bits);
    }
    // total + float(sums) * scale, rounded twice as the format says
    static SEEDDELTA_INLINE F add_group(F total, V sums, float scale) {
        return _mm256_add_ps(total, _mm256_mul_ps(_mm256_cvtepi32_ps(sums), _mm256_set1_ps(scale)));
    }
    // What interleave has made, in the order of the rows. R: V or F
    template <class R>
    static SEEDDELTA_INLINE void order(R *r) {
        const V a = __builtin_bit_cast(V, r[0]);
        const V b = __builtin_bit_cast(V, r[1]);
        r[0] = __builtin_bit_cast(R, _mm256_permute2x128_si256(a, b, 0x20));
        r[1] = __builtin_bit_cast(R, _mm256_permute2x128_si256(a, b, 0x31));
    }
    static SEEDDELTA_INLINE int32_t sum(V sums) {
        __m128i s = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
        s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4E));
        s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xB1));
        return _mm_cvtsi128_si32(s);
    }
};

} // namespace
} // namespace seeddelta
