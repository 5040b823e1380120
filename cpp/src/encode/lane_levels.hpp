// The values of a lane code as the search wants them, and the search's fixed-point numbers.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "format/lanes.hpp"
#include "simd/kernel_table.hpp"

namespace seeddelta {

// Values that occur, and for each value of the pattern which one a state has.
struct LaneLevels {
    std::vector<int16_t> levels;
    std::vector<uint16_t> index;   // [values of the pattern, kLaneStates], as LaneStep::level
    std::vector<LaneStep> pattern; // [steps of the pattern]
    std::vector<int> first_value;  // [steps of the pattern]

    explicit LaneLevels(const LaneCode &code) {
        std::vector<int16_t> values(static_cast<size_t>(code.values * kLaneStates));
        for (int step = 0, value = 0; step < code.steps; ++step) {
            first_value.push_back(value);
            for (int i = 0; i < code.emits[step]; ++i, ++value) {
                for (int s = 0; s < kLaneStates; ++s) { // c1, c0, c2
                    values[static_cast<size_t>(value * kLaneStates + s)] =
                        static_cast<int16_t>(lane_value(code, value, i == 1, (s >> 4) & 15, s >> 8, s & 15));
                }
            }
        }
        levels = values;
        std::sort(levels.begin(), levels.end());
        levels.erase(std::unique(levels.begin(), levels.end()), levels.end());
        index.resize(values.size());
        for (size_t i = 0; i < values.size(); ++i) {
            const auto at = std::lower_bound(levels.begin(), levels.end(), values[i]) - levels.begin();
            index[i] = static_cast<uint16_t>(at * kSearchRows);
        }
        for (int step = 0; step < code.steps; ++step) {
            const uint16_t *first = index.data() + first_value[static_cast<size_t>(step)] * kLaneStates;
            pattern.push_back({code.emits[step], {first, first + (code.emits[step] > 1 ? kLaneStates : 0)}});
        }
    }
};

// Columns of a search with the fixed-point weights: f[c] = round(f0 * sqrt(importance)), where f0 makes a column of mean
// importance cost about kTypical, and no weight more than kLargest.
struct LaneWeights {
    static constexpr double kTypical = 1568; // before it is halved: of 65535
    static constexpr double kLargest = 511;  // times any level (63) below 2^15

    int error_shift; // about the rate, as the typical error halves with every bit, and two for unequal weights
    double typical;  // f0 where the mean importance is 1

    explicit LaneWeights(const LaneCode &code) : error_shift(static_cast<int>(std::lround(code.bits())) + 2) {
        const double distortion = 1.1 * code.unit * std::exp2(-code.bits());
        typical = std::sqrt(kTypical * 65536) / distortion / (1 << error_shift);
    }

    // importance of the columns of a search (0: padding) to their weights
    void operator()(const std::vector<float> &importance, int16_t *out) const {
        double sum = 0;
        double largest = 0;
        int64_t count = 0;
        for (const float h : importance) {
            sum += h;
            largest = std::max(largest, static_cast<double>(h));
            count += h > 0 ? 1 : 0;
        }
        const double mean = count > 0 ? sum / static_cast<double>(count) : 1.0;
        const double unit = count > 0 ? std::min(typical / std::sqrt(mean), kLargest / std::sqrt(largest)) : 1.0;
        for (size_t i = 0; i < importance.size(); ++i) {
            const double f = std::nearbyint(unit * std::sqrt(static_cast<double>(importance[i])));
            out[i] = static_cast<int16_t>(std::clamp(f, 1.0, kLargest));
        }
    }
};

} // namespace seeddelta
