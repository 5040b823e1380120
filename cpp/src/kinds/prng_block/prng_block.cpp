#include "kinds/prng_block/kind.hpp"

namespace seeddelta::kinds {

void prng_block::build(const Builder &b) {
    const Array &index = b.in.seed_idx;
    const Array &gain = b.in.seed_gain;
    const int block = b.in.base_block;
    b.require(block == 8 || block == 16 || block == 32 || block == 64, "base_block must be 8, 16, 32 or 64");
    b.c.base_block = static_cast<uint32_t>(block);
    b.require(index || !gain, "seed_gain without seed_idx");
    if (gain) {
        require_array(gain, "seed_gain", "i", 1, {b.c.n_out, b.c.base_blocks()});
        require_array(index, "seed_idx", "iu", 2, {b.c.n_out, b.c.base_blocks()});
        b.c.seed_gain = gain.as<int8_t>();
    } else if (index) {
        require_array(index, "seed_idx", "iu", 2, {b.c.n_out});
    }
    b.c.seed_index = index.as<uint16_t>();
}

std::vector<const char *> prng_block::names(const seeddelta_ctx &ctx) {
    return ctx.seed_index != nullptr ? std::vector{"prng_block", "seed_choice"} : std::vector{"prng_block"};
}

static int value_of(const seeddelta_ctx &ctx, int64_t row, int64_t column) {
    const int64_t block = column / ctx.base_block;
    const int gain = ctx.seed_gain != nullptr ? ctx.seed_gain[row * ctx.base_blocks() + block] : 1;
    return gain * prng_block_value_at(prng_block_key_of(ctx, row, block), column % ctx.base_block);
}

void prng_block::values(const seeddelta_ctx &ctx, int64_t row, int16_t *out) {
    for (int64_t column = 0; column < ctx.n_in; ++column) {
        out[column] = static_cast<int16_t>(value_of(ctx, row, column));
    }
}

void prng_block::row(const seeddelta_ctx &ctx, int64_t row, float *out, float *) {
    for (int64_t column = 0; column < ctx.n_in; ++column) {
        out[column] = static_cast<float>(value_of(ctx, row, column));
    }
}

} // namespace seeddelta::kinds
