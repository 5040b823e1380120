// The values of a lane code as the search wants them, and the search's fixed-point numbers.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "format/lanes.hpp"
#include "simd/kernel_table.hpp"

namespace seeddelta {

// A row's or unit's scale over its root mean square before the search; .99 to 1.05 are alike.
inline constexpr double kLaneScaleFactor = 1.02;

// Values that occur, and for each value of the pattern which one a state has; forwards, and backwards in time, where
// the codes that follow a step take the place of those before it.
struct LaneLevels {
    std::vector<int16_t> levels;
    std::vector<int16_t> added;                // by the bits of the planes
    std::vector<LaneStep> forwards, backwards; // [steps of the pattern]
    std::vector<int> first_value;              // [steps of the pattern]

    explicit LaneLevels(const LaneCode &code) {
        std::vector<int16_t> values; // of all steps: [16, 16] of first and third values, [16, kLaneSums] of the others
        for (int step = 0, value = 0; step < code.steps; ++step) {
            first_value.push_back(value);
            for (int number = 0; number < code.emits[step]; ++number, ++value) {
                for (int i = 0; i < size(number); ++i) {
                    const int own = i / kLaneSums;
                    const int others = i % kLaneSums + 16 - own;
                    const int v = number % 2 == 0 ? lane_value(code, value, number, i % 16, i / 16, 0)
                                                  : lane_value(code, value, number, own, 0, others);
                    values.push_back(static_cast<int16_t>(v));
                }
            }
        }
        for (int bits = 0; bits < 1 << code.planes; ++bits) {
            added.push_back(static_cast<int16_t>(code.added_by(bits)));
        }
        levels = values;
        std::sort(levels.begin(), levels.end());
        levels.erase(std::unique(levels.begin(), levels.end()), levels.end());
        for (const int16_t v : values) {
            const auto at = std::lower_bound(levels.begin(), levels.end(), v) - levels.begin();
            index_.push_back(static_cast<uint16_t>(at * kSearchRows));
        }
        const auto [low, high] = std::minmax_element(added.begin(), added.end());
        least_ = levels.front() + *low;
        most_ = levels.back() + *high;
        const uint16_t *next = index_.data();
        for (int step = 0; step < code.steps; ++step) {
            LaneStep emitted{code.emits[step], false, code.plane_values(step) > 0, {}};
            for (int number = 0; number < emitted.values; ++number) {
                emitted.level[number] = next;
                next += size(number);
            }
            forwards.push_back(emitted);
            emitted.backwards = true;
            backwards.push_back(emitted);
        }
    }
    // Beyond the outermost values the search would see no slope.
    double clamped(double x) const { return std::clamp(x, least_, most_); }
    // The bits of the planes that add what is nearest to `missing`; ties to the least.
    uint8_t nearest_bits(double missing) const {
        size_t best = 0;
        for (size_t i = 1; i < added.size(); ++i) {
            best = std::abs(missing - added[i]) < std::abs(missing - added[best]) ? i : best;
        }
        return static_cast<uint8_t>(best);
    }
    LaneLevels(const LaneLevels &) = delete;
    LaneLevels &operator=(const LaneLevels &) = delete;

private:
    // States that value `number` of a step tells apart.
    static int size(int number) { return 16 * (number % 2 == 0 ? 16 : kLaneSums); }

    std::vector<uint16_t> index_;
    double least_, most_;
};

// Columns of a search with the fixed-point weights: f[c] = round(f0 * sqrt(importance)), where f0 makes a column of
// mean importance cost about kTypical, and no weight more than kLargest.
struct LaneWeights {
    static constexpr double kTypical =
        400; // before it is halved: of 65535. 800 leaves too little above it (3 bits: +.5%)
    static constexpr double kLargest = 511; // times any level (63) below 2^15

    int error_shift; // about the rate, as the typical error halves with every bit, and two for unequal weights
    double typical;  // f0 where the mean importance is 1

    explicit LaneWeights(const LaneCode &code) : error_shift(static_cast<int>(std::lround(code.bits())) + 2) {
        const double distortion = 1.1 * code.deviation * std::exp2(-code.bits());
        typical = std::sqrt(kTypical * 65536) / distortion / (1 << error_shift);
    }

    // f0 for searches of columns of these importances (0: padding).
    double unit(const std::vector<float> &importance) const {
        double sum = 0;
        double largest = 0;
        int64_t count = 0;
        for (const float h : importance) {
            sum += h;
            largest = std::max(largest, static_cast<double>(h));
            count += h > 0 ? 1 : 0;
        }
        if (count == 0) {
            return 1;
        }
        return std::min(typical / std::sqrt(sum / static_cast<double>(count)), kLargest / std::sqrt(largest));
    }

    // Squared error times importance, in units of the tables, that a price of 1 in LaneSearch stands for.
    double squared(double unit) const { return std::ldexp(16 * 131072.0, -2 * error_shift) / (unit * unit); }

    static int16_t weight(double unit, float importance) {
        const double f = std::nearbyint(unit * std::sqrt(static_cast<double>(importance)));
        return static_cast<int16_t>(std::clamp(f, 1.0, kLargest));
    }
};

} // namespace seeddelta
