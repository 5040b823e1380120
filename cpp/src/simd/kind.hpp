// What a kind is for an instruction-set unit: SimdOf<Kind, Arch>, which has the SIMD twins of the definitions in
// kinds/<kind>/kind.hpp, which give the same bits. Include inside such a unit only.
//
//   tile(ctx, a, row0, rows, panel, token, count, y, y_stride, acc)   of a base: the sums of a tile's rows for
//                              tokens from `token` on, of which the first call of a tile has token 0; panel is scratch
//   dot(ctx, row, x, p)        of a residual
//   prepare(ctx, work, s)      with kPrepares
#pragma once
#include "simd/kernel_table.hpp"

namespace seeddelta {
namespace {

template <class Kind, class Arch>
struct SimdOf;

} // namespace
} // namespace seeddelta
