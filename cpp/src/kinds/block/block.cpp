#include "kinds/block/kind.hpp"

namespace seeddelta::kinds {

void block::build(const Builder &b) {
    const Array &value = b.in.b_val;
    require_array(b.in.b_map, "b_map", "iu", 2, {b.rows(), -1});
    const int64_t kept = b.in.b_map.shape[1];
    b.require(value.shape.size() == 3, "b_map without b_val of [n_out, kept, block]");
    const int64_t block = value.shape[2];
    b.require(block == 32 || block == 64, "a block of b_val must have 32 or 64 columns");
    b.require(value.item_size != 2 || !b.in.b_scale, "float16 b_val has no b_scale");
    b.c.scheme = ResidualScheme::block;
    b.c.residual_size = static_cast<uint32_t>(kept);
    b.c.residual_block = static_cast<uint32_t>(block);
    b.c.residual_index = b.in.b_map.as<uint16_t>();
    const char *const names[] = {"b_val", "b_scale"};
    b.set_values(value, b.in.b_scale, names, {b.rows(), kept, block}, {b.rows(), kept});
}

std::vector<const char *> block::names(const seeddelta_ctx &) {
    return {"block"};
}

std::string block::check(const seeddelta_ctx &c, int64_t rows) {
    const int64_t kept = c.residual_size;
    const int64_t n_blocks = (c.n_in + c.residual_block - 1) / c.residual_block;
    for (int64_t e = 0; e < rows * kept; ++e) {
        const bool ascends = e % kept == 0 || c.residual_index[e - 1] < c.residual_index[e];
        if (!ascends || c.residual_index[e] >= n_blocks) {
            return row_text("b_map", e / kept) + " does not ascend below " + std::to_string(n_blocks) + " blocks";
        }
    }
    return {};
}

static float block_scale(const seeddelta_ctx &ctx, int64_t entry) {
    return ctx.residual_vals_f16 != nullptr ? 1.0F : half_to_float(ctx.residual_scale[entry]);
}

static float block_value(const seeddelta_ctx &ctx, int64_t at) {
    return ctx.residual_vals_f16 != nullptr ? half_to_float(ctx.residual_vals_f16[at])
                                            : static_cast<float>(ctx.residual_vals_i8[at]);
}

float block::dot(const seeddelta_ctx &ctx, int64_t row, const float *x, const float *) {
    const int64_t columns = ctx.residual_block;
    float total[kSumLanes] = {};
    for (int64_t entry = row * ctx.residual_size; entry < (row + 1) * ctx.residual_size; ++entry) {
        const int64_t column = ctx.residual_index[entry] * columns;
        float partial[kSumLanes] = {};
        for (int64_t i = 0; i < block_columns(ctx, column); ++i) {
            partial[i % kSumLanes] += block_value(ctx, entry * columns + i) * x[column + i];
        }
        const float scale = block_scale(ctx, entry);
        for (int i = 0; i < kSumLanes; ++i) {
            total[i] += partial[i] * scale;
        }
    }
    return reduce_sums(total);
}

void block::add(const seeddelta_ctx &ctx, int64_t row, float *out) {
    const int64_t columns = ctx.residual_block;
    for (int64_t entry = row * ctx.residual_size; entry < (row + 1) * ctx.residual_size; ++entry) {
        const int64_t column = ctx.residual_index[entry] * columns;
        const float scale = block_scale(ctx, entry);
        for (int64_t i = 0; i < block_columns(ctx, column); ++i) {
            out[column + i] += block_value(ctx, entry * columns + i) * scale;
        }
    }
}

} // namespace seeddelta::kinds
