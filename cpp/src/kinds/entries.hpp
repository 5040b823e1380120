// Entries of a row, exact columns with float16 or int8 values: of coo, and of codebook_resid, whose columns are atoms.
#pragma once
#include "format/float16.hpp"
#include "format/partial_sums.hpp"
#include "kinds/builder.hpp"

namespace seeddelta {

static inline int64_t entry_column(const seeddelta_ctx &ctx, int64_t entry) {
    return ctx.residual_index != nullptr ? ctx.residual_index[entry]
                                         : static_cast<int64_t>(ctx.residual_index32[entry]);
}

static inline float entry_value(const seeddelta_ctx &ctx, int64_t row, int64_t entry) {
    if (ctx.residual_vals_f16 != nullptr) {
        return half_to_float(ctx.residual_vals_f16[entry]);
    }
    return half_to_float(ctx.residual_scale[row]) * static_cast<float>(ctx.residual_vals_i8[entry]);
}

// Definition: the sum of the products of a row's entries with what x has in their columns.
inline float entries_dot(const seeddelta_ctx &ctx, int64_t row, const float *x) {
    float partial[kSumLanes] = {};
    const int64_t first = row * ctx.residual_size;
    for (int64_t e = 0; e < ctx.residual_size; ++e) {
        partial[e % kSumLanes] += entry_value(ctx, row, first + e) * x[entry_column(ctx, first + e)];
    }
    return reduce_sums(partial);
}

inline std::string row_text(const char *array, int64_t row) {
    return std::string(array) + " of row " + std::to_string(row);
}

} // namespace seeddelta
