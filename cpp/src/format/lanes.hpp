// Base kind lanes: a trellis code whose states live in byte lanes. docs/reference/format.md, "Byte lanes".
//
// A row has four streams; stream i owns the columns i, i + 4, i + 8, ... A stream is a sequence of 4-bit codes, and a
// step (one code) emits one to four values, by the pattern of the code. With c0 the step's code, c1 and c2 those of the
// two steps before, all sums modulo 16:
//
//     first and third value of a step     A[c0 + c2] + B[c1]
//     second and fourth value of a step   A[c0 + c1 + c2] + B[c0]
//
// Above 4 bits, and at 3, each bit plane has a bit beside a value that adds a fixed number, a coarse step: the stream
// chooses the finer ones (Ungerboeck's parallel transitions). At 4.5 bits every second value has one.
//
// Tables are trained: random starts, then Viterbi searches and least squares in turns.
#pragma once
#include <cstdint>

#include "seeddelta/lane_code.hpp"
#include "seeddelta/weight.hpp"

namespace seeddelta {

inline constexpr int64_t kPrefixSteps = 32; // steps after which the stream's codes are those that come before its first
// Codes are asked for this long before they are read.
inline constexpr int64_t kLanesAhead = 8192;

// Value `value` of the pattern, number `i` of its step, without what planes add; c0 .. c2 in 0 .. 15.
static inline int lane_value(const LaneCode &code, int value, int i, int c0, int c1, int c2) {
    const LaneTables &t = code.tables[value];
    return i % 2 == 1 ? t.a[(c0 + c1 + c2) & 15] + t.b[c0] : t.a[(c0 + c2) & 15] + t.b[c1];
}

// The code of step `step` in one byte lane of a tile.
static inline int lane_step(const LaneCode &code, const uint8_t *tile, int64_t lane, int64_t step) {
    const uint8_t both = tile[code.code_line(step) * kLaneBytes + lane];
    return step % 2 == 0 ? both & 15 : both >> 4;
}

// Values of columns [0, n_in) of one row, in the rotated domain, into out [n_in].
void lanes_row(const seeddelta_ctx &ctx, int64_t row, int16_t *out);

} // namespace seeddelta
