// Viterbi search of the lane code (format/lanes.hpp) for 32 rows at once: a register's lanes are rows, so that no state
// needs a look-up of its own and the same code serves every emission pattern (Viterbi 1967; Marcellin, Fischer 1990 for
// source coding). Integers make the scalar definition and every SIMD twin equal bit for bit.
//
// A step appends a code: the state is c2 * 256 + c1 * 16 + c0, c0 the newest. Path costs are kept for the 256 pairs
// c1 * 16 + c0 ("ends"), as int16 above -32768, in multiples of 16; the low four bits hold c2 of the best path.
// Cost of emitting level v against a target, with the column's weight f[c] = round(f0 * sqrt(importance)) and a shift
// z:
//     e = |saturate16(target - v * f)|,   n = min(e, near),   cost = min(((n * 2^z)^2 / 2^17 + e - n) & ~15, limit)
// with the least e of what planes may add to v; near is where three quarters of the limit are reached, and farther
// errors cost more, but by little;
// limit is 32752 over the values of a step, so that the paths from a given start never meet saturation in their
// first two steps, in which all others are cut off by it.
#pragma once
#include <cstdint>

#include "simd/kernel_table.hpp"

namespace seeddelta {

// Scalar definition. Ties go to the least c2.
void lane_search_scalar(const LaneSearchTask &task);

// Codes of steps [0, steps) of a row whose path has this end after the last of them: out[step * stride]. Returns the
// end before step 0.
int lane_trace(const LaneSearchTask &task, int64_t steps, int end, int64_t row, uint8_t *out, int64_t stride);

} // namespace seeddelta
