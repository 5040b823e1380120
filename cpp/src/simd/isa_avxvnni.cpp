// AVX2 unit with AVX-VNNI (Alder Lake, Zen 5 and later). Only the product uses it; the rest is the table of
// isa_avx2.cpp. The biased values are 1 .. 127, so that PMADDUBSW never saturates and VPDPBUSD adds the same sums.
#include <immintrin.h>

#include "simd/compute.hpp"
#include "simd/lane_strips.hpp"
#include "simd/words_256.hpp"

namespace seeddelta {
const KernelTable &kernels_avxvnni() {
    static const KernelTable table = [] {
        KernelTable t = kernels_avx2();
        t.name = "avxvnni";
        t.linear.compute = compute_simd<xsimd::avx2, Words256>;
        t.linear.columns_lanes = columns_lanes_simd<Words256>;
        t.linear.columns_lanes_many = columns_lanes_many_simd<Words256>;
        return t;
    }();
    return table;
}

} // namespace seeddelta
