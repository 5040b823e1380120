// Values from a hash of (seed, row, block): of base kind prng_block and of the kept blocks of proc_sparse, never stored
// beyond a block. docs/reference/format.md.
#pragma once
#include <cstdint>

#include "format/splitmix64.hpp"

namespace seeddelta {

static inline uint64_t prng_block_key(uint64_t seed, uint64_t row, uint64_t block) {
    return splitmix64_mix(splitmix64_mix(seed + kGoldenGamma * (row + 1)) + kGoldenGamma * (block + 1));
}

// The value of one byte of the stream: odd, -63 .. 63.
static inline int prng_block_value(uint8_t byte) {
    return 2 * (byte & 63) - 63;
}

// Standard deviation of prng_block_value over uniform bytes: sqrt((64^2 - 1) / 3).
inline constexpr double kPrngBlockStd = 36.945906403822335;

// Columns [0, n_in) of one row of a single seed into out [n_in].
void prng_block_row(uint64_t seed, uint64_t row, int64_t n_in, uint32_t block, int8_t *out);

// The value of a column of a block.
static inline int prng_block_value_at(uint64_t key, int64_t offset) {
    const uint64_t word = splitmix64_at(key, static_cast<uint64_t>(offset / 8));
    return prng_block_value(static_cast<uint8_t>(word >> (8 * (offset % 8))));
}

} // namespace seeddelta
