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
#include "simd/lanes_ssse3.hpp"

namespace seeddelta {
namespace {

using Arch = xsimd::ssse3;

// 16-bit words of the search for codes
struct Words {
    using U = xsimd::batch<uint16_t, Arch>;
    static inline U high(U a, U b) { return _mm_mulhi_epu16(a, b); }
};

// The words of columns.hpp
struct ColumnWords {
    using V = __m128i;
    using F = __m128;

    static SEEDDELTA_INLINE V repeat(int32_t bits) { return _mm_set1_epi32(bits); }
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
    static SEEDDELTA_INLINE V widen(const int8_t *p) {
        const V bytes = _mm_loadl_epi64(reinterpret_cast<const V *>(p));
        return _mm_srai_epi16(_mm_unpacklo_epi8(bytes, bytes), 8);
    }
    static SEEDDELTA_INLINE V dot_pairs(V sums, V values, V x) {
        return _mm_add_epi32(sums, _mm_madd_epi16(values, x));
    }
    static SEEDDELTA_INLINE void interleave(V a, V b, V *out) {
        out[0] = _mm_unpacklo_epi16(a, b);
        out[1] = _mm_unpackhi_epi16(a, b);
    }
    static SEEDDELTA_INLINE void order(V *) {} // interleave keeps it
};

using ColumnsSsse3 = ColumnsX86<ColumnWords, 4, 2>;

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
                   .compute = compute_simd<Arch, LaneWords128>,
                   .columns_f16 = columns_f16_simd<Arch, ColumnsSsse3>,
                   .columns_i8 = columns_i8_simd<Arch, ColumnsSsse3>,
                   .columns_f16_batch = columns_f16_batch_simd<Arch, ColumnsSsse3>,
                   .columns_i8_batch = columns_i8_batch_simd<Arch, ColumnsSsse3>,
                   .columns_lanes = columns_lanes_simd<LaneWords128>,
                   .columns_lanes_many = columns_lanes_many_simd<LaneWords128>},
        .attention = {.attend = attend_simd<Arch, AttentionOps>,
                      .score = attention_scalar().score,
                      .popcount = attention_scalar().popcount,
                      .estimate = estimate_simd<Arch, AttentionOps>,
                      .nearness = nearness_simd<Arch>,
                      .count = count_simd<Arch>,
                      .above = above_simd<Arch>,
                      .mass = mass_simd<Arch>},
        .gating = {.count_above = count_above_simd<Arch>, .bitmaps = bitmaps_simd<Arch>, .popcount = popcount_scalar},
        .encode = {.lane_search = lane_search_simd<Arch, Words>, .subtract_product = subtract_product_scalar}};
    return table;
}

} // namespace seeddelta
