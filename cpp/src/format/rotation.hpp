// Input rotation: seeded signs, then a normalized Hadamard transform of the columns b, b + g, b + 2g, ... (g = n /
// block) for every b < g. docs/reference/format.md. Applied to weight rows when encoding and to activations at run
// time; being orthonormal it leaves their product alone.
#pragma once
#include <cmath>
#include <cstdint>

#include "format/splitmix64.hpp"

namespace seeddelta {

// Bit i of the result is the sign of column 64 * word + i (1: negative).
static inline uint64_t rotation_sign_word(uint64_t seed, uint64_t word) {
    return splitmix64_at(splitmix64_mix(seed), word);
}

static inline float rotation_scale(uint32_t block) {
    return 1.0F / std::sqrt(static_cast<float>(block));
}

// Factor of a column from its stored scale: 2^(scale / 8), the eighths of an octave from a table so that it is exact.
static inline float column_factor_of(int8_t scale) {
    constexpr float kEighths[8] = {1.0F,          1.0905077327F, 1.1892071150F, 1.2968395547F,
                                   1.4142135624F, 1.5422108254F, 1.6817928305F, 1.8340080864F};
    return std::ldexp(kEighths[scale & 7], scale >> 3);
}

// Scalar definition for one row of n columns, into `out`, which may be x. block must be a power of two that divides n.
void rotate(const float *x, float *out, int64_t n, uint32_t block, uint64_t seed);
// The inverse, in place: Hadamard, then signs.
void rotate_back(float *row, int64_t n, uint32_t block, uint64_t seed);

} // namespace seeddelta
