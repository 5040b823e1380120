#include "format/coo.hpp"

namespace seeddelta {

float coo_dot(const seeddelta_ctx &ctx, int64_t row, const float *x) {
    float partial[kCooLanes] = {};
    const int64_t first = row * ctx.residual_size;
    for (int64_t e = 0; e < ctx.residual_size; ++e) {
        partial[e % kCooLanes] += coo_value(ctx, row, first + e) * x[coo_column(ctx, first + e)];
    }
    return coo_reduce(partial);
}

void coo_add(const seeddelta_ctx &ctx, int64_t row, float *out) {
    const int64_t first = row * ctx.residual_size;
    for (int64_t e = first; e < first + ctx.residual_size; ++e) {
        out[coo_column(ctx, e)] += coo_value(ctx, row, e);
    }
}

} // namespace seeddelta
