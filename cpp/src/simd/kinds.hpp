// All kinds for instruction-set units. Include inside such a unit only.
#pragma once
#include "kinds/kinds.hpp"
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
