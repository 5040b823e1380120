// The codes of byte lanes as types, for loops that are unrolled by them. Include inside an instruction-set unit only.
#pragma once
#include "format/lanes.hpp"
#include "simd/inline.hpp"

namespace seeddelta {
namespace {

// How many values each step of a pattern emits, with `Planes` bits beside each of the first `WithBits`. `Shared`: the
// single values have one table, if there are some, the first of several another, and so on; else every value has its
// own.
template <bool Shared, int Planes, int WithBits, int... Emits>
struct LanePattern {
    static constexpr int kPlanes = Planes;
    static constexpr int kSteps = sizeof...(Emits);
    static constexpr int kEmits[kSteps] = {Emits...};
    static constexpr int kValues = (Emits + ...);
    static constexpr int kTables = Shared ? 3 : kValues;
    static constexpr int kChunk = Planes > 0        ? (kLanePlaneValues / WithBits) * kSteps
                                  : kSteps % 2 == 0 ? kSteps
                                                    : 2 * kSteps;  // steps
    static constexpr int kLines = Planes + kChunk / 2;             // of a chunk
    static constexpr int kDotGroups = kValues * (kChunk / kSteps); // of four columns, in a chunk
    // The line that ends the tail-biting prefix of a stream. (LaneCode::code_line would be a function that units
    // share.)
    static int64_t loop_line(int64_t lines) {
        const int64_t steps = lines / kLines * kChunk;
        const int64_t last = (steps < kPrefixSteps ? steps : kPrefixSteps) - 1;
        return last / kChunk * kLines + Planes + last % kChunk / 2;
    }
    // Whether a value has bits of the planes, and where in their bytes.
    static constexpr bool has_bits(int value) { return Planes > 0 && value % kValues < WithBits; }
    static constexpr int plane_bit(int value) { return value / kValues * WithBits + value % kValues; }
    static constexpr int first_value(int step) {
        int value = 0;
        for (int s = 0; s < step; ++s) {
            value += kEmits[s % kSteps];
        }
        return value;
    }
    static constexpr int table_of(int value) {
        if constexpr (!Shared) {
            return value;
        }
        int step = 0;
        while (first_value(step + 1) <= value) {
            ++step;
        }
        return kEmits[step] == 1 ? 0 : (... || (Emits == 1)) + value - first_value(step);
    }
    // A value that has the table, or 0.
    static constexpr int value_with(int table) {
        for (int value = 0; value < kValues; ++value) {
            if (table_of(value) == table) {
                return value;
            }
        }
        return 0;
    }
};

// Calls f.template operator()<Pattern>() for the pattern of a code.
template <class F>
SEEDDELTA_INLINE void with_pattern(const LaneCode &code, F &&f) {
    switch (code.number) {
    case 2:
        return f.template operator()<LanePattern<false, 0, 0, 4>>();
    case 3:
        return f.template operator()<LanePattern<true, 0, 0, 3, 3, 2>>();
    case 4:
        return f.template operator()<LanePattern<false, 0, 0, 2>>();
    case 5:
        return f.template operator()<LanePattern<true, 0, 0, 2, 1, 2, 1, 2>>();
    case 6:
        return f.template operator()<LanePattern<false, 1, 2, 2>>();
    case 7:
        return f.template operator()<LanePattern<true, 0, 0, 1, 1, 1, 1, 1, 1, 2>>();
    case 8:
        return f.template operator()<LanePattern<false, 0, 0, 1>>();
    case 9:
        return f.template operator()<LanePattern<false, 1, 1, 1, 1>>();
    case 10:
        return f.template operator()<LanePattern<false, 1, 1, 1>>();
    case 12:
        return f.template operator()<LanePattern<false, 2, 1, 1>>();
    default:
        return f.template operator()<LanePattern<false, 0, 0, 1, 1, 2>>();
    }
}

} // namespace
} // namespace seeddelta
