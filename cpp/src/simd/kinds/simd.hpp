// The kinds for instruction-set units. Include inside such a unit only. SimdOf<Kind, Arch> has the SIMD twins of the
// definitions in <kind>/kind.hpp, which give the same bits:
//
//   tile<Tile>(ctx, a, row0, rows, panel, token, count, y, y_stride, acc)   of a base: the sums of a tile's rows for
//                              tokens from `token` on, of which the first call of a tile has token 0; panel is scratch
//   dot(ctx, row, x, p)        of a residual
//   prepare(ctx, work, s)      with kPrepares
#pragma once
#include "simd/kernel_table.hpp"
#include "simd/kinds/kinds.hpp"

namespace seeddelta {
namespace {

template <class Kind, class Arch>
struct SimdOf;

} // namespace
} // namespace seeddelta

#include "simd/kinds/list_simd.hpp" // made by CMake: <kind>/simd.hpp of all

namespace seeddelta {
namespace {

template <class Arch>
void prepare_simd(const seeddelta_ctx &ctx, const PrepareWork &work, float *scratch) {
    Kinds::both(ctx, [&]<class K>() {
        if constexpr (K::kPrepares) {
            SimdOf<K, Arch>::prepare(ctx, work, scratch);
        }
    });
}

} // namespace
} // namespace seeddelta
