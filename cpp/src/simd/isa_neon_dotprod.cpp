// NEON unit with the dot product extension (FEAT_DotProd: Armv8.2 and later). Only the product uses it; the rest is the
// table of isa_neon.cpp.
#include <arm_neon.h>

#include "simd/compute.hpp"
#include "simd/lane_strips.hpp"
#include "simd/words_neon.hpp"

namespace seeddelta {
namespace {

struct Dot {
    static SEEDDELTA_INLINE int32x4_t dot(int32x4_t sum, int8x16_t values, int8x16_t x) {
        return vdotq_s32(sum, values, x);
    }
};

} // namespace

const KernelTable &kernels_neon_dotprod() {
    static const KernelTable table = [] {
        KernelTable t = kernels_neon();
        t.name = "neon_dotprod";
        t.linear.compute = compute_simd<xsimd::neon64, WordsNeon<Dot>>;
        t.linear.columns_lanes = columns_lanes_simd<WordsNeon<Dot>>;
        t.linear.columns_lanes_many = columns_lanes_many_simd<WordsNeon<Dot>>;
        return t;
    }();
    return table;
}

} // namespace seeddelta
