// SSE2 unit: the baseline of x86-64. No byte look-up and no byte products here.
#include <emmintrin.h>

#include "format/float16.hpp"
#include "simd/activations.hpp"
#include "simd/attention_x86.hpp"
#include "simd/columns.hpp"
#include "simd/columns_scalar.hpp"
#include "simd/compute.hpp"
#include "simd/lane_search.hpp"
#include "simd/tile_128.hpp"
#include "simd/trellis_columns_128.hpp"
#include "simd/viterbi.hpp"
#include "simd/words_sse2.hpp"

namespace seeddelta {
namespace {

// 16-bit words of the Viterbi search
struct Words {
    using U = xsimd::batch<uint16_t, xsimd::sse2>;
    static inline U high(U a, U b) { return _mm_mulhi_epu16(a, b); }

    // lane i = p[i >> K]
    template <int K>
    static xsimd::batch<uint16_t, xsimd::sse2> expand(const uint16_t *p) {
        alignas(16) uint16_t lanes[8];
        for (int i = 0; i < 8; ++i) {
            lanes[i] = p[i >> K];
        }
        return xsimd::batch<uint16_t, xsimd::sse2>::load_aligned(lanes);
    }
};

using ColumnsSse2 = ColumnsX86<WordsSse2, 4, 2>;

struct AttentionOps {
    using F = xsimd::batch<float, xsimd::sse2>;
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

const KernelTable &kernels_sse2() {
    static const KernelTable table{.name = "sse2",
                                   .linear = {.rotate = rotate_simd<xsimd::sse2>,
                                              .rotate_back = rotate_back_simd<xsimd::sse2>,
                                              .quantize = quantize_simd<xsimd::sse2>,
                                              .prepare = prepare_simd<xsimd::sse2>,
                                              .compute = compute_simd<xsimd::sse2, Tile128, void>,
                                              .columns_f16 = columns_f16_simd<xsimd::sse2, ColumnsSse2>,
                                              .columns_i8 = columns_i8_simd<xsimd::sse2, ColumnsSse2>,
                                              .columns_f16_batch = columns_f16_batch_simd<xsimd::sse2, ColumnsSse2>,
                                              .columns_i8_batch = columns_i8_batch_simd<xsimd::sse2, ColumnsSse2>,
                                              .columns_trellis = columns_trellis_simd<Columns128>,
                                              .columns_trellis_many = columns_trellis_many_simd<Columns128>,
                                              .columns_lanes = columns_lanes_scalar,
                                              .columns_lanes_many = columns_lanes_many_scalar},
                                   .attention = {.attend = attend_simd<xsimd::sse2, AttentionOps>,
                                                 .score = attention_scalar().score,
                                                 .popcount = attention_scalar().popcount,
                                                 .estimate = estimate_simd<xsimd::sse2, AttentionOps>,
                                                 .nearness = nearness_simd<xsimd::sse2>,
                                                 .count = count_simd<xsimd::sse2>,
                                                 .above = above_simd<xsimd::sse2>,
                                                 .mass = mass_simd<xsimd::sse2>},
                                   .gating = {.count_above = count_above_simd<xsimd::sse2>,
                                              .bitmaps = bitmaps_simd<xsimd::sse2>,
                                              .popcount = popcount_scalar},
                                   .encode = {.viterbi = viterbi_simd<xsimd::sse2, Words>,
                                              .lane_search = lane_search_simd<xsimd::sse2, Words>,
                                              .subtract_product = subtract_product_scalar}};
    return table;
}

} // namespace seeddelta
