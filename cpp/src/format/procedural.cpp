#include "format/procedural.hpp"

namespace seeddelta {

void prng_block_row(uint64_t seed, uint64_t row, int64_t n_in, uint32_t block, int8_t *out) {
    for (int64_t column = 0; column < n_in; ++column) {
        const uint64_t key = prng_block_key(seed, row, static_cast<uint64_t>(column / block));
        out[column] = static_cast<int8_t>(prng_block_value_at(key, column % block));
    }
}

} // namespace seeddelta
