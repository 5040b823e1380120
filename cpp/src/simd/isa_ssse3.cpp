// SSSE3 unit, for processors without AVX2 (Core 2 to Ivy Bridge, Atoms and Celerons until today): the first with byte
// look-up and byte products.
#include <tmmintrin.h>

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
    static SEEDDELTA_INLINE F words(const int16_t *p) {
        const __m128i four = _mm_loadl_epi64(reinterpret_cast<const __m128i *>(p));
        return _mm_cvtepi32_ps(_mm_srai_epi32(_mm_unpacklo_epi16(four, four), 16));
    }
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
        .attention = {.attend = attention_scalar().attend, // no fused multiply-add
                      .widen = widen_scalar,
                      .prompt = prompt_scalar,
                      .fused = false,
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
