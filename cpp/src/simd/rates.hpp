// The rates of the trellis as template arguments. Include inside an instruction-set unit only.
#pragma once
#include "simd/inline.hpp"
#include "seeddelta/weight.hpp"

namespace seeddelta {
namespace {

// Whether the hash of a state depends on its low 12 bits only: then the high 4 may be anything.
template <class Weight>
static SEEDDELTA_INLINE bool narrow_states(const Weight &ctx) {
    return ((ctx.multiplier[0] | (ctx.values_per_step == 2 ? ctx.multiplier[1] : 0)) & 15) == 0;
}

// Calls f.template operator()<step_bits, values_per_step, narrow_states>(). Weight: seeddelta_ctx or ColumnWeight
template <class Weight, class F>
SEEDDELTA_INLINE void with_rate(const Weight &ctx, F &&f) {
    const auto with = [&]<int K, int V>() SEEDDELTA_INLINE_LAMBDA {
        return narrow_states(ctx) ? f.template operator()<K, V, true>() : f.template operator()<K, V, false>();
    };
    if (ctx.values_per_step == 2) {
        switch (ctx.step_bits) {
        case 3:
            return with.template operator()<3, 2>();
        default:
            return with.template operator()<5, 2>();
        }
    }
    switch (ctx.step_bits) {
    case 1:
        return with.template operator()<1, 1>();
    case 2:
        return with.template operator()<2, 1>();
    case 3:
        return with.template operator()<3, 1>();
    case 4:
        return with.template operator()<4, 1>();
    case 5:
        return with.template operator()<5, 1>();
    default:
        return with.template operator()<6, 1>();
    }
}

} // namespace
} // namespace seeddelta
