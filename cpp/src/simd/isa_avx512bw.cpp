// AVX-512 unit without VNNI (F, BW, DQ, VL, CD: Skylake-X).
#include <immintrin.h>

#include "simd/attention_x86.hpp"
#include "simd/popcount_avx2.hpp"
#include "simd/table.hpp"
#include "simd/words_512.hpp"

namespace seeddelta {
namespace {

using Arch = xsimd::avx512bw;

using ColumnsAvx512 = ColumnsX86<Words512, 6, 4>;

struct AttentionOps {
    using F = xsimd::batch<float, Arch>;
    static SEEDDELTA_INLINE F half(const uint16_t *p) {
        return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p)));
    }
    static SEEDDELTA_INLINE F words(const int16_t *p) {
        return _mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p))));
    }
    static SEEDDELTA_INLINE F bytes(const int8_t *p) {
        return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p))));
    }
    static SEEDDELTA_INLINE float half_one(uint16_t h) { return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(h))); }
    // two registers' lanes i + i + 8
    static SEEDDELTA_INLINE __m512 halves(__m512 a, __m512 b) {
        return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xEE));
    }
    static SEEDDELTA_INLINE void sum4(const F *a, const F *b, const F *c, const F *d, float *out) {
        const __m512 ab = halves(a[0], b[0]);
        const __m512 cd = halves(c[0], d[0]);
        __m512 sum = _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xDD));
        sum = _mm512_add_ps(sum, _mm512_permute_ps(sum, 0x4E));
        sum = _mm512_add_ps(sum, _mm512_permute_ps(sum, 0xB1));
        const __m512i firsts = _mm512_castsi128_si512(_mm_setr_epi32(0, 4, 8, 12));
        _mm_storeu_ps(out, _mm512_castps512_ps128(_mm512_permutexvar_ps(firsts, sum)));
    }
    static SEEDDELTA_INLINE F fused(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
    static constexpr int kRegisters = 32;
    static constexpr int kValues = 4;
    static constexpr int kTileRows = 12;
    static constexpr int kTileRegisters = 2;
};

} // namespace

const KernelTable &kernels_avx512bw() {
    static const KernelTable table = [] {
        KernelTable t{
            .name = "avx512bw",
            .linear = linear_simd<Arch, Words512, ColumnsAvx512>(),
            // xsimd transposes no 16 x 16
            .attention = attention_simd<Arch, AttentionOps, xsimd::avx2, AttentionOps256>(),
            .gating = {.count_above = count_above_simd<Arch>, .bitmaps = bitmaps_simd<Arch>, .popcount = popcount_avx2},
            .encode = {.lane_search = lane_search_simd<Arch, Words512>,
                       .subtract_product = subtract_product_simd<Arch>}};
        t.attention.score = t.attention.popcount = score_256;
        return t;
    }();
    return table;
}

} // namespace seeddelta
