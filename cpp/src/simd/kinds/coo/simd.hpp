// coo for any xsimd architecture. Include inside an instruction-set unit only.
#pragma once
#include "simd/kinds/coo/kind.hpp"
#include "simd/kinds/entries_simd.hpp"
#include "simd/kinds/simd.hpp"

namespace seeddelta {
namespace {

template <class Arch>
struct SimdOf<kinds::coo, Arch> {
    static float dot(const seeddelta_ctx &ctx, int64_t row, const float *x, const float *) {
        return entries_dot_simd<Arch>(ctx, row, x);
    }
};

} // namespace
} // namespace seeddelta
