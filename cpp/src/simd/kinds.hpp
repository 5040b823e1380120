// The kinds for instruction-set units. Include inside such a unit only. SimdOf<Kind, Arch> has the SIMD twins of the
// definitions in kinds/<kind>/kind.hpp, which give the same bits:
//
//   tile(ctx, a, row0, rows, panel, token, count, y, y_stride, acc)   of a base: the sums of a tile's rows for
//                              tokens from `token` on, of which the first call of a tile has token 0; panel is scratch
//   dot(ctx, row, x, p)        of a residual
//   prepare(ctx, work, s)      with kPrepares
#pragma once
#include "kinds/kinds.hpp"
#include "simd/kernel_table.hpp"

namespace seeddelta {
namespace {

template <class Kind, class Arch>
struct SimdOf;

} // namespace
} // namespace seeddelta

#include "simd/kind_block.hpp"
#include "simd/kind_codebook_resid.hpp"
#include "simd/kind_coo.hpp"
#include "simd/kind_fht_struct.hpp"
#include "simd/kind_prng_block.hpp"

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
