// SSSE3 unit, for processors without AVX2 (Core 2 to Ivy Bridge, Atoms and Celerons until today): byte lanes by byte
// look-up and byte products. The rest is the table of isa_sse2.cpp.
#include <tmmintrin.h>

#include "simd/compute.hpp"
#include "simd/lane_strips.hpp"
#include "simd/lanes_ssse3.hpp"
#include "simd/tile_128.hpp"

namespace seeddelta {

const KernelTable &kernels_ssse3() {
    static const KernelTable table = [] {
        KernelTable t = kernels_sse2();
        t.name = "ssse3";
        t.linear.compute = compute_simd<xsimd::ssse3, Tile128, LaneWords128>;
        t.linear.columns_lanes = columns_lanes_simd<LaneWords128>;
        t.linear.columns_lanes_many = columns_lanes_many_simd<LaneWords128>;
        return t;
    }();
    return table;
}

} // namespace seeddelta
