// Base kind prng_block: every value from a hash of (seed, row, block), never stored beyond a block. docs/format.md.
#pragma once
#include <cstdint>

#include "base/splitmix64.hpp"

namespace seeddelta {

static inline uint64_t prng_block_key(uint64_t seed, uint64_t row, uint64_t block) {
    return splitmix64_mix(splitmix64_mix(seed + kGoldenGamma * (row + 1)) + kGoldenGamma * (block + 1));
}

// The value of one byte of the stream: odd, -63 .. 63.
static inline int prng_block_value(uint8_t byte) { return 2 * (byte & 63) - 63; }

// Standard deviation of prng_block_value over uniform bytes: sqrt((64^2 - 1) / 3).
inline constexpr double kPrngBlockStd = 36.945906403822335;

// Columns [0, n_in) of one row into out [n_in].
void prng_block_row(uint64_t seed, uint64_t row, int64_t n_in, uint32_t block, int8_t *out);

} // namespace seeddelta
