// AVX-512 unit with VNNI but without VBMI (Cascade Lake). Only the product uses it; the rest is the table of
// isa_avx512bw.cpp.
#include <immintrin.h>

#include "simd/column_slices.hpp"
#include "simd/compute.hpp"
#include "simd/lane_strips.hpp"
#include "simd/lanes_x86.hpp"
#include "simd/tile.hpp"
#include "simd/words_avx512.hpp"

namespace seeddelta {
namespace {

struct Ops : WordsAvx512 {
    static SEEDDELTA_INLINE __m256i dot(__m256i sum, __m256i values, __m256i x) {
        return _mm256_dpbusd_epi32(sum, values, x);
    }
};

struct Dot512 {
    static SEEDDELTA_INLINE __m512i dot(__m512i sum, __m512i values, __m512i x) {
        return _mm512_dpbusd_epi32(sum, values, x);
    }
};

} // namespace

const KernelTable &kernels_avx512vnni() {
    static const KernelTable table = [] {
        KernelTable t = kernels_avx512bw();
        t.name = "avx512vnni";
        t.linear.compute = compute_simd<xsimd::avx512bw, Tile<Ops>, LaneWords512<Dot512>>;
        t.linear.columns_trellis = columns_trellis_simd<ColumnSlices<Ops>>;
        t.linear.columns_trellis_many = columns_trellis_many_simd<ColumnSlices<Ops>>;
        t.linear.columns_lanes = columns_lanes_simd<LaneWords512<Dot512>>;
        t.linear.columns_lanes_many = columns_lanes_many_simd<LaneWords512<Dot512>>;
        return t;
    }();
    return table;
}

} // namespace seeddelta
