#include "format/block.hpp"

namespace seeddelta {

static float block_scale(const seeddelta_ctx &ctx, int64_t entry) {
    return ctx.residual_vals_f16 != nullptr ? 1.0F : half_to_float(ctx.residual_scale[entry]);
}

static float block_value(const seeddelta_ctx &ctx, int64_t at) {
    return ctx.residual_vals_f16 != nullptr ? half_to_float(ctx.residual_vals_f16[at])
                                            : static_cast<float>(ctx.residual_vals_i8[at]);
}

float block_dot(const seeddelta_ctx &ctx, int64_t row, const float *x) {
    const int64_t block = ctx.residual_block;
    float total[kCooLanes] = {};
    for (int64_t entry = row * ctx.residual_size; entry < (row + 1) * ctx.residual_size; ++entry) {
        const int64_t column = ctx.residual_index[entry] * block;
        float partial[kCooLanes] = {};
        for (int64_t i = 0; i < block_columns(ctx, column); ++i) {
            partial[i % kCooLanes] += block_value(ctx, entry * block + i) * x[column + i];
        }
        const float scale = block_scale(ctx, entry);
        for (int i = 0; i < kCooLanes; ++i) {
            total[i] += partial[i] * scale;
        }
    }
    return coo_reduce(total);
}

void block_add(const seeddelta_ctx &ctx, int64_t row, float *out) {
    const int64_t block = ctx.residual_block;
    for (int64_t entry = row * ctx.residual_size; entry < (row + 1) * ctx.residual_size; ++entry) {
        const int64_t column = ctx.residual_index[entry] * block;
        const float scale = block_scale(ctx, entry);
        for (int64_t i = 0; i < block_columns(ctx, column); ++i) {
            out[column + i] += block_value(ctx, entry * block + i) * scale;
        }
    }
}

} // namespace seeddelta
