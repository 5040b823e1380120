// Base kind lanes: a trellis code whose states live in byte lanes. docs/reference/format.md, "Byte lanes".
//
// A row has four walks; walk i owns the columns i, i + 4, i + 8, ... A walk is a sequence of 4-bit codes, and a step
// (one code) emits one value or two, by the pattern of the code. With c0 the step's code, c1 and c2 those of the two
// steps before, all sums modulo 16:
//
//     first value of a step    A[c0 + c2] + B[c1]
//     second value of a step   A[c0 + c1 + c2] + B[c0]
//
// Tables are trained: random starts, then Viterbi searches and least squares in turns.
#pragma once
#include <cstdint>

#include "seeddelta/weight.hpp"

namespace seeddelta {

inline constexpr int64_t kLaneWalks = 4;                    // of a row
inline constexpr int64_t kLaneBytes = kTileRows * kLaneWalks; // a line: two steps of all walks of a tile
inline constexpr int64_t kLaneLoop = 32; // steps after which the walk's codes are those that come before its first
// Codes are asked for this long before they are read.
inline constexpr int64_t kLanesAhead = 8192;
inline constexpr int kLaneMostSteps = 8; // of a pattern
inline constexpr int kLaneMostValues = 8;

// The two tables of one value of the pattern. Sums of their entries are in -63 .. 63.
struct LaneTables {
    int8_t a[16];
    int8_t b[16];
};

struct LaneCode {
    uint32_t number;               // in files
    int steps;                     // of the pattern
    int values;                    // of all its steps
    uint8_t emits[kLaneMostSteps]; // 1 or 2, a step
    float unit;                    // what the standard deviation of the weights is in units of the tables
    LaneTables tables[kLaneMostValues];

    double bits() const { return 4.0 * steps / values; }
    // Lines and columns of the shortest stretch of whole lines and whole patterns. The columns divide kGroup.
    int chunk_lines() const { return steps % 2 == 0 ? steps / 2 : steps; }
    int64_t chunk_columns() const { return kLaneWalks * values * (steps % 2 == 0 ? 1 : 2); }
    int64_t chunks(int64_t n_in) const { return (n_in + chunk_columns() - 1) / chunk_columns(); }
    int64_t lines(int64_t n_in) const { return chunks(n_in) * chunk_lines(); }
};

// All codes, by number.
inline constexpr uint32_t kLaneCodes = 5;
// Null when there is no such code.
const LaneCode *lane_code(uint32_t number);

// Value `value` of the pattern; c0 .. c2 in 0 .. 15.
static inline int lane_value(const LaneCode &code, int value, bool second, int c0, int c1, int c2) {
    const LaneTables &t = code.tables[value];
    return second ? t.a[(c0 + c1 + c2) & 15] + t.b[c0] : t.a[(c0 + c2) & 15] + t.b[c1];
}

// The code of step `step` in one byte lane of a tile.
static inline int lane_step(const uint8_t *tile, int64_t lane, int64_t step) {
    const uint8_t both = tile[step / 2 * kLaneBytes + lane];
    return step % 2 == 0 ? both & 15 : both >> 4;
}

// Values of columns [0, n_in) of one row, in the rotated domain, into out [n_in].
void lanes_row(const seeddelta_ctx &ctx, int64_t row, int16_t *out);

} // namespace seeddelta
