// Viterbi search over the bit-shift trellis in 16-bit integer arithmetic (Viterbi 1967; Marcellin, Fischer 1990 for source
// coding). Integers make the scalar definition and every SIMD twin equal bit for bit.
//
// Cost of state s at column c, with the column's weight f[c] = round(f0 * sqrt(importance)) and a shift z for the rate:
//     e = saturate16(target[c] - values[s] * f[c]),   a = min(|e|, 65535 >> z) << z,   cost = a^2 >> 16
// Path costs are added with saturation at 65535 after the least cost of the step before was taken away, so the window of
// costs that are told apart is 65535 wide; f0 is chosen so that a typical step costs about kTypicalCost.
#pragma once
#include <cstdint>

#include "simd/kernel_table.hpp"

namespace seeddelta {

inline constexpr double kTypicalCost = 784.0;
inline constexpr int kMaxWeight = 595; // 55 * 595 < 2^15

// Scalar definition. Ties go to the predecessor, and at the end to the state, with the least number.
void viterbi_scalar(const ViterbiTask &task);

// Reads the surviving path from task.back, once the final costs are in `cost`.
void viterbi_trace(const ViterbiTask &task, const uint16_t *cost);

} // namespace seeddelta
