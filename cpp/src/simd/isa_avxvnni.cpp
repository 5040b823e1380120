// AVX2 unit with AVX-VNNI (Alder Lake, Zen 5 and later). Only the product uses it; the rest is the table of
// isa_avx2.cpp. The biased values are 1 .. 127, so that PMADDUBSW never saturates and VPDPBUSD adds the same sums.
#include <immintrin.h>

#include "simd/column_slices.hpp"
#include "simd/compute.hpp"
#include "simd/lane_strips.hpp"
#include "simd/lanes_x86.hpp"
#include "simd/tile.hpp"
#include "simd/words_avx2.hpp"

namespace seeddelta {
namespace {

struct Ops : WordsAvx2 {
    static SEEDDELTA_INLINE __m256i dot(__m256i sum, __m256i values, __m256i x) {
        return _mm256_dpbusd_avx_epi32(sum, values, x);
    }
};

} // namespace

const KernelTable &kernels_avxvnni() {
    static const KernelTable table = [] {
        KernelTable t = kernels_avx2();
        t.name = "avxvnni";
        t.linear.compute = compute_simd<xsimd::avx2, Tile<Ops>, LaneWords256<Ops>>;
        t.linear.columns_trellis = columns_trellis_simd<ColumnSlices<Ops>>;
        t.linear.columns_trellis_many = columns_trellis_many_simd<ColumnSlices<Ops>>;
        t.linear.columns_lanes = columns_lanes_simd<LaneWords256<Ops>>;
        t.linear.columns_lanes_many = columns_lanes_many_simd<LaneWords256<Ops>>;
        return t;
    }();
    return table;
}

} // namespace seeddelta
