// The codes of base kind lanes: how many values a step emits, and the tables that it looks them up in.
// docs/reference/format.md, "The byte lanes".
#pragma once
#include <cstdint>
#include <span>

#include "seeddelta/weight.hpp"

namespace seeddelta {

inline constexpr int64_t kStreams = 4;                      // of a row
inline constexpr int64_t kLaneBytes = kTileRows * kStreams; // a line: two steps of all streams of a tile
inline constexpr int kLaneMostSteps = 8;                    // of a pattern
inline constexpr int kLaneMostEmits = 4;                    // a step
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
    uint32_t number;               // in files: twice the bits, and 16 more for a second pattern of the same bits
    int steps;                     // of the pattern
    int values;                    // of all its steps
    uint8_t emits[kLaneMostSteps]; // 1 to kLaneMostEmits, a step
    float deviation;               // what the standard deviation of the weights is in units of the tables
    LaneTables tables[kLaneMostValues];
    int planes;                    // with them every step emits the same number of values
    int8_t added[kLaneMostPlanes]; // by each plane's bit
    int values_with_bits;          // of the pattern, its first ones: the others have no bits

    constexpr double bits() const { return (4.0 * steps + planes * values_with_bits) / values; }
    // Steps, lines and columns of the shortest stretch of whole lines and whole patterns, a chunk: a line for each
    // plane, then those of the codes. The columns divide kGroup.
    constexpr int chunk_steps() const {
        return planes > 0 ? kLanePlaneValues / values_with_bits * steps : steps % 2 == 0 ? steps : 2 * steps;
    }
    constexpr int chunk_lines() const { return planes + chunk_steps() / 2; }
    constexpr int64_t chunk_columns() const { return kStreams * values * (chunk_steps() / steps); }
    int64_t chunks(int64_t n_in) const { return (n_in + chunk_columns() - 1) / chunk_columns(); }
    int64_t lines(int64_t n_in) const { return chunks(n_in) * chunk_lines(); }
    int64_t stream_steps(int64_t n_in) const { return chunks(n_in) * chunk_steps(); }
    // Lines of a tile: of a step's codes, and of the bits of a plane.
    int64_t code_line(int64_t step) const {
        return step / chunk_steps() * chunk_lines() + planes + step % chunk_steps() / 2;
    }
    int64_t plane_line(int64_t step, int plane) const { return step / chunk_steps() * chunk_lines() + plane; }
    // Where the bytes of that line have the bit of value i of the step, which plane_values has.
    int plane_bit(int64_t step, int i) const {
        return static_cast<int>(step % chunk_steps() / steps) * values_with_bits +
               static_cast<int>(step % steps) * emits[0] + i;
    }
    // Values of a step that have bits, and those of value i out of the step's: that of plane p at bit p.
    int plane_values(int64_t step) const {
        return planes > 0 && step % steps * emits[0] < values_with_bits ? static_cast<int>(emits[0]) : 0;
    }
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
std::span<const LaneCode> lane_codes();
// Null when there is no such code.
const LaneCode *lane_code(uint32_t number);

} // namespace seeddelta
