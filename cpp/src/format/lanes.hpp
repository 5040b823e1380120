// Base kind lanes: a trellis code whose states live in byte lanes. docs/reference/format.md, "Byte lanes".
//
// A row has four walks; walk i owns the columns i, i + 4, i + 8, ... A walk is a sequence of 4-bit codes, and a step
// (one code) emits one to four values, by the pattern of the code. With c0 the step's code, c1 and c2 those of the two
// steps before, all sums modulo 16:
//
//     first and third value of a step     A[c0 + c2] + B[c1]
//     second and fourth value of a step   A[c0 + c1 + c2] + B[c0]
//
// Above 4 bits, and at 3, each bit plane has a bit beside a value that adds a fixed number: a coarse step, so that the
// walk chooses the finer ones (Ungerboeck's parallel transitions).
//
// Tables are trained: random starts, then Viterbi searches and least squares in turns.
#pragma once
#include <cstdint>

#include "seeddelta/weight.hpp"

namespace seeddelta {

inline constexpr int64_t kLaneWalks = 4;                      // of a row
inline constexpr int64_t kLaneBytes = kTileRows * kLaneWalks; // a line: two steps of all walks of a tile
inline constexpr int64_t kLaneLoop = 32; // steps after which the walk's codes are those that come before its first
// Codes are asked for this long before they are read.
inline constexpr int64_t kLanesAhead = 8192;
inline constexpr int kLaneMostSteps = 8; // of a pattern
inline constexpr int kLaneMostEmits = 4; // a step
inline constexpr int kLaneMostValues = 8;
inline constexpr int kLaneMostPlanes = 2;
inline constexpr int kLaneLargest = 63;    // of a value
inline constexpr int kLanePlaneValues = 8; // whose bits of one plane share a byte

// The two tables of one value of the pattern. Sums of their entries, and of what planes add, are in -kLaneLargest ..
// kLaneLargest.
struct LaneTables {
    int8_t a[16];
    int8_t b[16];
};

struct LaneCode {
    uint32_t number;               // in files
    int steps;                     // of the pattern
    int values;                    // of all its steps
    uint8_t emits[kLaneMostSteps]; // 1 to kLaneMostEmits, a step
    float unit;                    // what the standard deviation of the weights is in units of the tables
    LaneTables tables[kLaneMostValues];
    int planes;                    // with them: one step
    int8_t added[kLaneMostPlanes]; // by each plane's bit

    constexpr double bits() const { return 4.0 * steps / values + planes; }
    // Steps, lines and columns of the shortest stretch of whole lines and whole patterns, a chunk: a line for each
    // plane, then those of the codes. The columns divide kGroup.
    constexpr int chunk_steps() const {
        return planes > 0 ? kLanePlaneValues / values : steps % 2 == 0 ? steps : 2 * steps;
    }
    constexpr int chunk_lines() const { return planes + chunk_steps() / 2; }
    constexpr int64_t chunk_columns() const { return kLaneWalks * values * (chunk_steps() / steps); }
    int64_t chunks(int64_t n_in) const { return (n_in + chunk_columns() - 1) / chunk_columns(); }
    int64_t lines(int64_t n_in) const { return chunks(n_in) * chunk_lines(); }
    int64_t walk_steps(int64_t n_in) const { return chunks(n_in) * chunk_steps(); }
    // Lines of a tile: of a step's codes, and of the bits of a plane.
    int64_t code_line(int64_t step) const {
        return step / chunk_steps() * chunk_lines() + planes + step % chunk_steps() / 2;
    }
    int64_t plane_line(int64_t step, int plane) const { return step / chunk_steps() * chunk_lines() + plane; }
    // Where the bytes of that line have the bit of value i of the step.
    int plane_bit(int64_t step, int i) const { return static_cast<int>(step % chunk_steps()) * values + i; }
    // Values of a step that have bits, and those of value i out of the step's: that of plane p at bit p.
    int plane_values() const { return planes > 0 ? values : 0; }
    int bits_of(int step_bits, int i) const { return step_bits >> (i * planes) & ((1 << planes) - 1); }
    // What the bits of a value add, that of plane p at bit p.
    int added_by(int bits) const {
        int sum = 0;
        for (int p = 0; p < planes; ++p) {
            sum += (bits >> p & 1) != 0 ? added[p] : 0;
        }
        return sum;
    }
};

// All codes, by number.
inline constexpr uint32_t kLaneCodes = 10;
// Null when there is no such code.
const LaneCode *lane_code(uint32_t number);

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
