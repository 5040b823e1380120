// SSSE3 unit, for processors without AVX2 (Core 2 to Ivy Bridge, Atoms and Celerons until today): the first with byte
// look-up and byte products.
#include <tmmintrin.h>

#include "simd/attention_x86.hpp"
#include "simd/table.hpp"
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
        .linear = linear_simd<Arch, Words128, ColumnsSsse3>(),
        .attention = choice_simd<Arch, AttentionOps>(), // no fused multiply-add
        .gating = {.count_above = count_above_simd<Arch>, .bitmaps = bitmaps_simd<Arch>, .popcount = popcount_scalar},
        .encode = {.lane_search = lane_search_simd<Arch, Words128>, .subtract_product = subtract_product_scalar}};
    return table;
}

} // namespace seeddelta
