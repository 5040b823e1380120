// Base kind prng_block: every value from a hash of (seed, row, block), never stored beyond a block. docs/reference/format.md.
#pragma once
#include <cstdint>

#include "format/splitmix64.hpp"
#include "seeddelta/weight.hpp"

namespace seeddelta {

static inline uint64_t prng_block_key(uint64_t seed, uint64_t row, uint64_t block) {
    return splitmix64_mix(splitmix64_mix(seed + kGoldenGamma * (row + 1)) + kGoldenGamma * (block + 1));
}

// The value of one byte of the stream: odd, -63 .. 63.
static inline int prng_block_value(uint8_t byte) {
    return 2 * (byte & 63) - 63;
}

// The key of a weight's block, whose seed may have been chosen for the row or for the block.
static inline uint64_t prng_block_key_of(const seeddelta_ctx &ctx, int64_t row, int64_t block) {
    uint64_t seed = ctx.base_seed;
    if (ctx.seed_index != nullptr) {
        seed += kGoldenGamma * ctx.seed_index[ctx.seed_gain != nullptr ? row * ctx.base_blocks() + block : row];
    }
    return prng_block_key(seed, static_cast<uint64_t>(row), static_cast<uint64_t>(block));
}

// Standard deviation of prng_block_value over uniform bytes: sqrt((64^2 - 1) / 3).
inline constexpr double kPrngBlockStd = 36.945906403822335;

// Columns [0, n_in) of one row of a single seed into out [n_in].
void prng_block_row(uint64_t seed, uint64_t row, int64_t n_in, uint32_t block, int8_t *out);
// The same for a weight, with its chosen seeds and gains: -8064 .. 8064.
void prng_block_row(const seeddelta_ctx &ctx, int64_t row, int16_t *out);

} // namespace seeddelta
