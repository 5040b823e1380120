// SSSE3 unit, for processors without AVX2 (Core 2 to Ivy Bridge, Atoms and Celerons until today): the first with byte
// look-up and byte products.
#include <tmmintrin.h>

#include "format/float16.hpp"
#include "simd/activations.hpp"
#include "simd/attention_x86.hpp"
#include "simd/columns.hpp"
#include "simd/columns_scalar.hpp"
#include "simd/compute.hpp"
#include "simd/lane_search.hpp"
#include "simd/lane_strips.hpp"
#include "simd/words_128.hpp"

namespace seeddelta {
namespace {

using Arch = xsimd::ssse3;

using ColumnsSsse3 = ColumnsX86<Words128, 4, 2>;

struct AttentionOps {
    using F = xsimd::batch<float, Arch>;
    // half_to_float of format/float16.hpp
    static SEEDDELTA_INLINE F half(const uint16_t *p) {
        const __m128i h =
            _mm_unpacklo_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(p)), _mm_setzero_si128());
        const __m128i magnitude = _mm_slli_epi32(_mm_and_si128(h, _mm_set1_epi32(0x7FFF)), 13);
        const __m128 scaled = _mm_mul_ps(_mm_castsi128_ps(magnitude), _mm_set1_ps(0x1p112F));
        const __m128i exponent = _mm_set1_epi32(0x7C00);
        const __m128i special =
            _mm_and_si128(_mm_cmpeq_epi32(_mm_and_si128(h, exponent), exponent), _mm_set1_epi32(0x7F800000));
        const __m128i sign = _mm_slli_epi32(_mm_and_si128(h, _mm_set1_epi32(0x8000)), 16);
        return _mm_or_ps(scaled, _mm_castsi128_ps(_mm_or_si128(special, sign)));
    }
    static SEEDDELTA_INLINE F words(const int16_t *p) {
        const __m128i four = _mm_loadl_epi64(reinterpret_cast<const __m128i *>(p));
        return _mm_cvtepi32_ps(_mm_srai_epi32(_mm_unpacklo_epi16(four, four), 16));
    }
    static SEEDDELTA_INLINE __m128 fold(const F *r) {
        return _mm_add_ps(_mm_add_ps(r[0], r[2]), _mm_add_ps(r[1], r[3]));
    }
    static SEEDDELTA_INLINE F bytes(const int8_t *p) {
        int32_t four = 0;
        __builtin_memcpy(&four, p, sizeof(four));
        const __m128i b = _mm_cvtsi32_si128(four);
        const __m128i w = _mm_unpacklo_epi8(b, b);
        return _mm_cvtepi32_ps(_mm_srai_epi32(_mm_unpacklo_epi16(w, w), 24));
    }
    static SEEDDELTA_INLINE float half_one(uint16_t h) { return half_to_float(h); }
    static SEEDDELTA_INLINE void sum4(const F *a, const F *b, const F *c, const F *d, float *out) {
        sum_of_four(fold(a), fold(b), fold(c), fold(d), out);
    }
    static constexpr int kValues = 2;
};

} // namespace

const KernelTable &kernels_ssse3() {
    static const KernelTable table{
        .name = "ssse3",
        .linear = {.rotate = rotate_simd<Arch>,
                   .rotate_back = rotate_back_simd<Arch>,
                   .quantize = quantize_simd<Arch>,
                   .prepare = prepare_simd<Arch>,
                   .compute = compute_simd<Arch, Words128>,
                   .columns_f16 = columns_f16_simd<Arch, ColumnsSsse3>,
                   .columns_f16_batch = columns_f16_batch_simd<Arch, ColumnsSsse3>,
                   .columns_lanes = columns_lanes_simd<Words128>,
                   .columns_lanes_many = columns_lanes_many_simd<Words128>},
        .attention = {.attend = attend_simd<Arch, AttentionOps>,
                      .widen = widen_scalar,
                      .prompt = prompt_scalar, // no fused multiply-add
                      .prompts = false,
                      .score = attention_scalar().score,
                      .popcount = attention_scalar().popcount,
                      .estimate = estimate_simd<Arch, AttentionOps>,
                      .nearness = nearness_simd<Arch>,
                      .count = count_simd<Arch>,
                      .above = above_simd<Arch>,
                      .mass = mass_simd<Arch>},
        .gating = {.count_above = count_above_simd<Arch>, .bitmaps = bitmaps_simd<Arch>, .popcount = popcount_scalar},
        .encode = {.lane_search = lane_search_simd<Arch, Words128>, .subtract_product = subtract_product_scalar}};
    return table;
}

} // namespace seeddelta
