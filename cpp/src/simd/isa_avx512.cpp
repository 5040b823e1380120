// AVX-512 unit with VBMI, VBMI2, BITALG and VNNI (Ice Lake, Zen 4 and later): VPERMB (whose index ignores high bits: no
// masking) and VPDPBUSD each save instructions. Only the product and the counting of bits use them; the rest is the
// table of isa_avx512bw.cpp.
#include <immintrin.h>

#include "simd/compute.hpp"
#include "simd/lane_strips.hpp"
#include "simd/words_512.hpp"

namespace seeddelta {
namespace {

// VPOPCNTDQ, with a mask for the last words
inline int64_t popcount_avx512(const uint64_t *words, int64_t n) {
    __m512i sum = _mm512_setzero_si512();
    for (int64_t i = 0; i < n; i += 8) {
        const __mmask8 there = n - i >= 8 ? 0xFF : static_cast<__mmask8>((1U << (n - i)) - 1);
        sum = _mm512_add_epi64(sum, _mm512_popcnt_epi64(_mm512_maskz_loadu_epi64(there, words + i)));
    }
    return _mm512_reduce_add_epi64(sum);
}

// popcount(plane & plus) - popcount(plane & minus), 32 keys at a time (VPOPCNTB). Eight bytes of a key differ by 64 at
// most, which a signed byte holds.
void popcount_bitalg(const ScoreTask &t) {
    const int64_t bytes = t.dim / 8;
    for (int64_t block = 0; block < t.blocks; ++block) {
        __m512i sums = _mm512_setzero_si512();
        for (int64_t begin = 0; begin < bytes; begin += 8) {
            __m256i part = _mm256_setzero_si256();
            for (int64_t b = begin; b < (bytes < begin + 8 ? bytes : begin + 8); ++b) {
                const __m256i bits =
                    _mm256_loadu_si256(reinterpret_cast<const __m256i *>(t.plane + (block * bytes + b) * kKeyBlock));
                const __m256i plus = _mm256_and_si256(bits, _mm256_set1_epi8(static_cast<char>(t.plus[b])));
                const __m256i minus = _mm256_and_si256(bits, _mm256_set1_epi8(static_cast<char>(t.minus[b])));
                part = _mm256_sub_epi8(_mm256_add_epi8(part, _mm256_popcnt_epi8(plus)), _mm256_popcnt_epi8(minus));
            }
            sums = _mm512_add_epi16(sums, _mm512_cvtepi8_epi16(part));
        }
        auto *out = t.sums + block * kKeyBlock;
        const __m512i before = _mm512_loadu_si512(out);
        if (t.add > 0) {
            sums = _mm512_add_epi16(before, sums);
        } else if (t.add < 0) {
            sums = _mm512_sub_epi16(before, sums);
        }
        _mm512_storeu_si512(out, sums);
    }
}

} // namespace

const KernelTable &kernels_avx512() {
    static const KernelTable table = [] {
        KernelTable t = kernels_avx512bw();
        t.name = "avx512";
        t.attention.popcount = popcount_bitalg;
        t.linear.compute = compute_simd<xsimd::avx512bw, WordsVbmi>;
        t.gating.popcount = popcount_avx512;
        t.linear.columns_lanes = columns_lanes_simd<WordsVbmi>;
        t.linear.columns_lanes_many = columns_lanes_many_simd<WordsVbmi>;
        return t;
    }();
    return table;
}

} // namespace seeddelta
