// Base kind trellis ("N2"): a hash turns a walk through k-bit codes into Gaussian-like integers. docs/reference/format.md.
// A bit-shift trellis code as in QTIP (Tseng et al. 2024) and TCQ (Marcellin, Fischer 1990), with a hash that needs one
// 16-bit multiplication and two 16-entry table look-ups a value.
#pragma once
#include <cstdint>

#include "seeddelta/weight.hpp"

namespace seeddelta {

// Both ascending and symmetric. Their sum over uniform indices has standard deviation 19.862.
inline constexpr int8_t kTrellisTable1[16] = {-36, -23, -17, -12, -8, -5, -3, -1, 1, 3, 5, 8, 12, 17, 23, 36};
inline constexpr int8_t kTrellisTable2[16] = {-19, -14, -11, -8, -6, -4, -2, -1, 1, 2, 4, 6, 8, 11, 14, 19};
inline constexpr double kTrellisStd = 19.862;
// Added to every value so that the products of unsigned and signed bytes can be used: v + 64 is in 9 .. 119.
inline constexpr int kValueBias = 64;

// Codes are asked for before they are read: where two tiles are read at once, as far ahead as the second begins and
// a little more.
inline constexpr int64_t kLineBytes = 64;
inline constexpr int64_t kCodesAhead = 2048;
inline constexpr int64_t kNearBytes = 16384; // what the first cache holds beside the activations

// Asks for the first of `bytes` bytes, into the second cache.
static inline void prefetch_near(const uint8_t *codes, int64_t bytes) {
    for (int64_t at = 0; at < bytes && at < kNearBytes; at += kLineBytes) {
        __builtin_prefetch(codes + at, 0, 2);
    }
}

static inline int64_t codes_lead(int64_t tile_bytes) {
    return tile_bytes + kCodesAhead;
}

static inline int trellis_value(uint16_t state, uint16_t multiplier) {
    const auto h = static_cast<uint16_t>(uint32_t{state} * multiplier); // as int the product of the largest overflows
    return kTrellisTable1[h >> 12] + kTrellisTable2[(h >> 8) & 15];
}

// Multipliers of the first and second value of a step for an L-bit state: 16 - L trailing zero bits.
// From the vetted list of measured multipliers; an arbitrary odd number can cost a quarter of a bit.
uint16_t trellis_multiplier(int state_bits, int which);

// The state of `step` in row `lane` of a tile of `words` x 16 words.
static inline uint16_t trellis_state(const uint16_t *tile, int lane, int64_t step, int step_bits) {
    const int64_t bit = step * step_bits;
    const int64_t word = bit / 16;
    const int shift = static_cast<int>(bit % 16);
    const uint16_t first = tile[word * kTileRows + lane];
    if (shift == 0) {
        return first;
    }
    const uint16_t second = tile[(word + 1) * kTileRows + lane];
    return static_cast<uint16_t>((first << shift) | (second >> (16 - shift)));
}

// Values of columns [0, n_in) of one row, in the rotated domain, into out [n_in].
void trellis_row(const seeddelta_ctx &ctx, int64_t row, int16_t *out);

} // namespace seeddelta
