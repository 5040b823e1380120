#include "format/proc_sparse.hpp"

#include "format/float16.hpp"
#include "format/partial_sums.hpp"
#include "format/procedural.hpp"

namespace seeddelta {

static constexpr int kBlockMost = 64;

// The base's values in one block.
static void base_block(const seeddelta_ctx &ctx, int64_t row, int64_t block, int8_t *out) {
    const uint64_t key = prng_block_key(ctx.base_seed, static_cast<uint64_t>(row), static_cast<uint64_t>(block));
    for (int64_t i = 0; i < ctx.residual_block; ++i) {
        const uint64_t word = splitmix64_at(key, static_cast<uint64_t>(i / 8));
        out[i] = static_cast<int8_t>(prng_block_value(static_cast<uint8_t>(word >> (8 * (i % 8)))));
    }
}

// Adds a block's products to the partial sums: exact integers by pairs of columns, then float32.
static void add_products(const int8_t *values, const int8_t *q, int64_t block, float scale, float *partial) {
    int32_t sum[kSumLanes] = {};
    for (int64_t i = 0; i < block; ++i) {
        sum[i % 32 / 2] += values[i] * q[i];
    }
    for (int i = 0; i < kSumLanes; ++i) {
        partial[i] += static_cast<float>(sum[i]) * scale;
    }
}

void proc_sparse_dot(const seeddelta_ctx &ctx, int64_t row, const int8_t *q, const float *scale, float &acc,
                     float &res) {
    const int64_t block = ctx.residual_block;
    const int8_t *values = ctx.residual_vals_i8 + row * ctx.residual_size * block;
    float base[kSumLanes] = {};
    float delta[kSumLanes] = {};
    for_kept_blocks(ctx, row, [&](int64_t entry, int64_t number) {
        const int64_t column = number * block;
        const float d = scale[column / kGroup];
        add_products(values + entry * block, q + column, block, d, delta);
        if (ctx.base == BaseKind::prng_block) {
            int8_t v[kBlockMost];
            base_block(ctx, row, number, v);
            add_products(v, q + column, block, d, base);
        }
    });
    acc = reduce_sums(base);
    res = reduce_sums(delta) * half_to_float(ctx.residual_scale[row]);
}

void proc_sparse_add(const seeddelta_ctx &ctx, int64_t row, float *out) {
    const int64_t block = ctx.residual_block;
    const int8_t *values = ctx.residual_vals_i8 + row * ctx.residual_size * block;
    const float scale = half_to_float(ctx.residual_scale[row]);
    for_kept_blocks(ctx, row, [&](int64_t entry, int64_t number) {
        const int64_t column = number * block;
        int8_t v[kBlockMost] = {};
        if (ctx.base == BaseKind::prng_block) {
            base_block(ctx, row, number, v);
        }
        for (int64_t i = 0; i < block && column + i < ctx.n_in; ++i) {
            out[column + i] +=
                static_cast<float>(v[i]) * ctx.base_scale + static_cast<float>(values[entry * block + i]) * scale;
        }
    });
}

} // namespace seeddelta
