// The words of kernels in 512 bits; see words_256.hpp. Include inside an instruction-set unit only.
#pragma once
#include "simd/words_256.hpp"

namespace seeddelta {
namespace {

// 512 bits: a whole line. Without VBMI codes are masked as with AVX2.
struct Words512 {
    using V = __m512i;
    using F = __m512;
    static constexpr int kParts = 1;
    static constexpr int64_t kDirect = 8;
    static constexpr int kBias = kValueBias;
    static constexpr int direct_parts(int) { return 1; }
    // Two tiles share broadcasts. The sums of eight tokens and two tiles leave too few registers; and of one token four
    // tiles were 15% faster from the cache and no faster from memory, where it counts.
    static constexpr int tiles(int n) { return n > 1 && n <= 4 ? 2 : 1; }
    static constexpr bool packed(int n) { return n > 4; }

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
    static constexpr bool kTakes = false;
    template <int Bit>
    static SEEDDELTA_INLINE V add_bit(V values, V plane, V amount) {
        const __mmask64 set = _mm512_test_epi8_mask(plane, _mm512_set1_epi8(static_cast<char>(1 << Bit)));
        return _mm512_mask_add_epi8(values, set, values, amount);
    }
    static SEEDDELTA_INLINE V start(int32_t bias) { return _mm512_set1_epi32(bias); }
    static SEEDDELTA_INLINE V four(const int8_t *q) {
        int32_t bits;
        __builtin_memcpy(&bits, q, 4);
        return _mm512_set1_epi32(bits);
    }
    static SEEDDELTA_INLINE void keep(V &) {}
#if defined(__AVX512VNNI__) // spelled out: GCC copies each sum to another register and loads what could be broadcast
    static SEEDDELTA_INLINE V dot(V sum, V values, V x) {
        asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(values), "v"(x));
        return sum;
    }
    static SEEDDELTA_INLINE V dot_at(V sum, V values, const int8_t *x) {
        asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(values), "m"(*reinterpret_cast<const FourInputs *>(x)));
        return sum;
    }
    // Of eight tokens and two registers of values, with the inputs of a TokenBatch at x. In one piece: what the
    // compiler would put between them takes the place of products on Zen 4.
    static SEEDDELTA_INLINE void dots_of_block(V *sum, V v0, V v1, const int8_t *x) {
        struct Inputs {
            FourInputs of[2][8];
        };
        asm("vpdpbusd %c[n]*0+%[x]%{1to16%}, %[v0], %0\n\t"
            "vpdpbusd %c[n]*1+%[x]%{1to16%}, %[v0], %1\n\t"
            "vpdpbusd %c[n]*2+%[x]%{1to16%}, %[v0], %2\n\t"
            "vpdpbusd %c[n]*3+%[x]%{1to16%}, %[v0], %3\n\t"
            "vpdpbusd %c[n]*4+%[x]%{1to16%}, %[v0], %4\n\t"
            "vpdpbusd %c[n]*5+%[x]%{1to16%}, %[v0], %5\n\t"
            "vpdpbusd %c[n]*6+%[x]%{1to16%}, %[v0], %6\n\t"
            "vpdpbusd %c[n]*7+%[x]%{1to16%}, %[v0], %7\n\t"
            "vpdpbusd %c[n]*8+%[x]%{1to16%}, %[v1], %0\n\t"
            "vpdpbusd %c[n]*9+%[x]%{1to16%}, %[v1], %1\n\t"
            "vpdpbusd %c[n]*10+%[x]%{1to16%}, %[v1], %2\n\t"
            "vpdpbusd %c[n]*11+%[x]%{1to16%}, %[v1], %3\n\t"
            "vpdpbusd %c[n]*12+%[x]%{1to16%}, %[v1], %4\n\t"
            "vpdpbusd %c[n]*13+%[x]%{1to16%}, %[v1], %5\n\t"
            "vpdpbusd %c[n]*14+%[x]%{1to16%}, %[v1], %6\n\t"
            "vpdpbusd %c[n]*15+%[x]%{1to16%}, %[v1], %7"
            : "+v"(sum[0]), "+v"(sum[1]), "+v"(sum[2]), "+v"(sum[3]), "+v"(sum[4]), "+v"(sum[5]), "+v"(sum[6]),
              "+v"(sum[7])
            : [v0] "v"(v0), [v1] "v"(v1), [x] "m"(*reinterpret_cast<const Inputs *>(x)), [n] "i"(sizeof(FourInputs)));
    }
#else
    static SEEDDELTA_INLINE V dot(V sum, V values, V x) {
        return _mm512_add_epi32(sum, _mm512_madd_epi16(_mm512_maddubs_epi16(values, x), _mm512_set1_epi16(1)));
    }
#endif
    static SEEDDELTA_INLINE void store(uint8_t *out, V v) { _mm512_storeu_si512(out, v); }
    static SEEDDELTA_INLINE F no_floats() { return _mm512_setzero_ps(); }
    static SEEDDELTA_INLINE F load_floats(const float *p) { return _mm512_loadu_ps(p); }
    static SEEDDELTA_INLINE F add_group(F total, V sum, float scale) {
        return _mm512_add_ps(total, _mm512_mul_ps(_mm512_cvtepi32_ps(sum), _mm512_set1_ps(scale)));
    }
    static SEEDDELTA_INLINE void store_rows(float *out, F total) { _mm512_storeu_ps(out, total); }

    // For lane_columns.hpp
    static constexpr int kLanes = 4;
    static SEEDDELTA_INLINE void hold(V &sum) { asm("" : "+v"(sum)); }
    static SEEDDELTA_INLINE void zip8(V a, V b, V &low, V &high) {
        low = _mm512_unpacklo_epi8(a, b);
        high = _mm512_unpackhi_epi8(a, b);
    }
    static SEEDDELTA_INLINE void zip16(V a, V b, V &low, V &high) {
        low = _mm512_unpacklo_epi16(a, b);
        high = _mm512_unpackhi_epi16(a, b);
    }
    template <int Bytes>
    static SEEDDELTA_INLINE V gather(const uint8_t *const *p) {
        V v = _mm512_castsi128_si512(bytes_at<Bytes>(p[0]));
        v = _mm512_inserti32x4(v, bytes_at<Bytes>(p[1]), 1);
        v = _mm512_inserti32x4(v, bytes_at<Bytes>(p[2]), 2);
        return _mm512_inserti32x4(v, bytes_at<Bytes>(p[3]), 3);
    }
    static SEEDDELTA_INLINE V lanes_of(const int8_t *q) {
        const __m128i four = _mm_loadu_si128(reinterpret_cast<const __m128i *>(q));
        return _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3),
                                        _mm512_castsi128_si512(four));
    }
    // lanes 0 + 1 and 2 + 3 of both
    static SEEDDELTA_INLINE V halves(V a, V b) {
        return _mm512_add_epi32(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xDD));
    }
    static SEEDDELTA_INLINE V fold(const V *sum) { return halves(halves(sum[0], sum[1]), halves(sum[2], sum[3])); }

    // For columns.hpp
    static SEEDDELTA_INLINE F half(const uint16_t *p) {
        return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p)));
    }

    // For lane_search.hpp: the upper halves of products of 16 bits
    static SEEDDELTA_INLINE V upper_products(V a, V b) { return _mm512_mulhi_epu16(a, b); }
};

#if defined(__AVX512VBMI__)
// VPERMB looks at six bits of an index and the tables repeat every 16 bytes: what stands above a code does not matter,
// and sums carry upwards only.
struct WordsVbmi : Words512 {
    static SEEDDELTA_INLINE V low(V both) { return both; }
    static SEEDDELTA_INLINE V high(V both) { return _mm512_srli_epi16(both, 4); }
    static SEEDDELTA_INLINE V look(V table, V index) { return _mm512_permutexvar_epi8(index, table); }
    // The table, and `amount` more where bit 4 + place of the index is set.
    static SEEDDELTA_INLINE V wide_table(V table, int place, int8_t amount) {
        const __mmask64 set = place == 0 ? 0xFFFF0000FFFF0000 : 0xFFFFFFFF00000000;
        return _mm512_mask_add_epi8(table, set, table, _mm512_set1_epi8(amount));
    }
    // Bit `Bit` of a plane, at bit 4 or 5 above the code; the shift serves both. The table does not look at the other.
    template <int Bit>
    static SEEDDELTA_INLINE V with_bit(V code, V plane) {
        constexpr int up = 4 - Bit / 2 * 2;
        const V bits = up > 0 ? _mm512_slli_epi16(plane, up > 0 ? up : 0) : _mm512_srli_epi16(plane, up < 0 ? -up : 0);
        return _mm512_ternarylogic_epi32(code, bits, _mm512_set1_epi8(15), 0xE4); // the code where the mask is
    }
};
#endif

} // namespace
} // namespace seeddelta
