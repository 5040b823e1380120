// Residual scheme coo: the top-K entries of every row, exact columns, float16 or int8 values. docs/reference/format.md.
#pragma once
#include <cstdint>

#include "seeddelta/weight.hpp"
#include "format/float16.hpp"

namespace seeddelta {

inline constexpr int kCooLanes = 16; // partial sums of a row; the order of addition is part of the format

static inline int64_t coo_column(const seeddelta_ctx &ctx, int64_t entry) {
    return ctx.residual_index != nullptr ? ctx.residual_index[entry] : static_cast<int64_t>(ctx.residual_index32[entry]);
}

static inline float coo_value(const seeddelta_ctx &ctx, int64_t row, int64_t entry) {
    if (ctx.residual_vals_f16 != nullptr) {
        return half_to_float(ctx.residual_vals_f16[entry]);
    }
    return half_to_float(ctx.residual_scale[row]) * static_cast<float>(ctx.residual_vals_i8[entry]);
}

// Adds the 16 partial sums in the format's order.
static inline float coo_reduce(float partial[kCooLanes]) {
    for (int half = kCooLanes / 2; half > 0; half /= 2) {
        for (int i = 0; i < half; ++i) {
            partial[i] += partial[i + half];
        }
    }
    return partial[0];
}

// Scalar definition: the residual's share of one output, before the row scale.
float coo_dot(const seeddelta_ctx &ctx, int64_t row, const float *x);
// out [n_in] += the residual of a row.
void coo_add(const seeddelta_ctx &ctx, int64_t row, float *out);

} // namespace seeddelta
