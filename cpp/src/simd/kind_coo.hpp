// coo for any xsimd architecture. Include inside an instruction-set unit only.
#pragma once
#include "kinds/coo/kind.hpp"
#include "simd/entries.hpp"
#include "simd/kind.hpp"

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
