// AVX-512 unit with VNNI but without VBMI (Cascade Lake). Only the product uses it; the rest is the table of
// isa_avx512bw.cpp.
#include <immintrin.h>

#include "simd/compute.hpp"
#include "simd/lane_strips.hpp"
#include "simd/words_512.hpp"

namespace seeddelta {
const KernelTable &kernels_avx512vnni() {
    static const KernelTable table = [] {
        KernelTable t = kernels_avx512bw();
        t.name = "avx512vnni";
        t.linear.compute = compute_simd<xsimd::avx512bw, Words512>;
        t.linear.columns_lanes = columns_lanes_simd<Words512>;
        t.linear.columns_lanes_many = columns_lanes_many_simd<Words512>;
        return t;
    }();
    return table;
}

} // namespace seeddelta
