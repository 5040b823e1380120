// AVX2 + FMA unit. Intrinsics where xsimd has no word: byte look-up inside 128-bit lanes, u8 x s8 products.
#include <immintrin.h>

#include "simd/attention_x86.hpp"
#include "simd/popcount_avx2.hpp"
#include "simd/table.hpp"
#include "simd/words_256.hpp"

namespace seeddelta {
namespace {

struct DirectLanes : Words256 {
    static constexpr int64_t kDirect = 4;
    static constexpr bool packed(int n) { return n > 2; }
    static constexpr bool kHasDotBoth = true, kHasDotBothAt = true, kHasPairDots = true;

    // Two dot() whose products are added in 16 bits.
    static SEEDDELTA_INLINE V dot_both(V sum, V v0, V v1, V x0, V x1) {
        const V four = _mm256_add_epi16(_mm256_maddubs_epi16(v0, x0), _mm256_maddubs_epi16(v1, x1));
        return _mm256_add_epi32(sum, _mm256_madd_epi16(four, _mm256_set1_epi16(1)));
    }
    // The same with the inputs at x0 and x1. Spelled out: else GCC keeps some sums in memory and computes addresses,
    // which takes the place of products.
    static SEEDDELTA_INLINE V dot_both_at(V sum, V v0, V v1, const int8_t *x0, const int8_t *x1) {
        V a, b;
        asm("vpbroadcastd %[x0], %[a]\n\t"
            "vpbroadcastd %[x1], %[b]\n\t"
            "vpmaddubsw %[a], %[v0], %[a]\n\t"
            "vpmaddubsw %[b], %[v1], %[b]\n\t"
            "vpaddw %[b], %[a], %[a]\n\t"
            "vpmaddwd %[ones], %[a], %[a]\n\t"
            "vpaddd %[a], %[sum], %[sum]"
            : [sum] "+x"(sum), [a] "=&x"(a), [b] "=&x"(b)
            : [v0] "x"(v0), [v1] "x"(v1), [x0] "m"(*reinterpret_cast<const FourInputs *>(x0)),
              [x1] "m"(*reinterpret_cast<const FourInputs *>(x1)), [ones] "x"(_mm256_set1_epi16(1)));
        return sum;
    }
    // The same for two neighbors in a TokenBatch, the first of whose inputs are at x: products first, which are what
    // Zen 4 has too few units for, then sums.
    static SEEDDELTA_INLINE void dots_of_pair(V &sum0, V &sum1, V v0, V v1, const int8_t *x) {
        struct Inputs {
            FourInputs of[kTokenBatch + 2];
        };
        V a, b, c, d;
        asm("vpbroadcastd %[x], %[a]\n\t"
            "vpbroadcastd %c[dot_group]+%[x], %[b]\n\t"
            "vpbroadcastd %c[n]+%[x], %[c]\n\t"
            "vpbroadcastd %c[dot_group]+%c[n]+%[x], %[d]\n\t"
            "vpmaddubsw %[a], %[v0], %[a]\n\t"
            "vpmaddubsw %[b], %[v1], %[b]\n\t"
            "vpmaddubsw %[c], %[v0], %[c]\n\t"
            "vpmaddubsw %[d], %[v1], %[d]\n\t"
            "vpaddw %[b], %[a], %[a]\n\t"
            "vpaddw %[d], %[c], %[c]\n\t"
            "vpmaddwd %[ones], %[a], %[a]\n\t"
            "vpmaddwd %[ones], %[c], %[c]\n\t"
            "vpaddd %[a], %[sum0], %[sum0]\n\t"
            "vpaddd %[c], %[sum1], %[sum1]"
            : [sum0] "+x"(sum0), [sum1] "+x"(sum1), [a] "=&x"(a), [b] "=&x"(b), [c] "=&x"(c), [d] "=&x"(d)
            : [v0] "x"(v0), [v1] "x"(v1), [x] "m"(*reinterpret_cast<const Inputs *>(x)),
              [ones] "x"(_mm256_set1_epi16(1)), [n] "i"(sizeof(FourInputs)),
              [dot_group] "i"(kTokenBatch * sizeof(FourInputs)));
    }
};

using Arch = xsimd::avx2;
using ColumnsAvx2 = ColumnsX86<Words256, 4, 2>;

} // namespace

const KernelTable &kernels_avx2() {
    static const KernelTable table = [] {
        KernelTable t{
            .name = "avx2",
            .linear = linear_simd<Arch, DirectLanes, ColumnsAvx2>(),
            .attention = attention_simd<Arch, AttentionOps256>(),
            .gating = {.count_above = count_above_simd<Arch>, .bitmaps = bitmaps_simd<Arch>, .popcount = popcount_avx2},
            .encode = {.lane_search = lane_search_simd<Arch, Words256>,
                       .subtract_product = subtract_product_simd<xsimd::fma3<Arch>>}};
        t.attention.score = t.attention.popcount = score_256;
        return t;
    }();
    return table;
}

} // namespace seeddelta
