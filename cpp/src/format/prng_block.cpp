#include "format/prng_block.hpp"

namespace seeddelta {

static int value_at(uint64_t key, int64_t offset) {
    const uint64_t word = splitmix64_at(key, static_cast<uint64_t>(offset / 8));
    return prng_block_value(static_cast<uint8_t>(word >> (8 * (offset % 8))));
}

void prng_block_row(uint64_t seed, uint64_t row, int64_t n_in, uint32_t block, int8_t *out) {
    for (int64_t column = 0; column < n_in; ++column) {
        const uint64_t key = prng_block_key(seed, row, static_cast<uint64_t>(column / block));
        out[column] = static_cast<int8_t>(value_at(key, column % block));
    }
}

void prng_block_row(const seeddelta_ctx &ctx, int64_t row, int16_t *out) {
    for (int64_t column = 0; column < ctx.n_in; ++column) {
        const int64_t block = column / ctx.base_block;
        const int gain = ctx.seed_gain != nullptr ? ctx.seed_gain[row * ctx.base_blocks() + block] : 1;
        out[column] =
            static_cast<int16_t>(gain * value_at(prng_block_key_of(ctx, row, block), column % ctx.base_block));
    }
}

} // namespace seeddelta
