// What the encoders of rows and of columns share: values of the states, buffers and numbers of a Viterbi search.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "format/trellis.hpp"
#include "simd/viterbi_scalar.hpp"
#include "seeddelta/encode.hpp"

namespace seeddelta {

// Row scale over root mean square that gave the least error on Gaussian rows, by bits a weight.
inline float measured_scale_factor(double rate) {
    static constexpr double rates[] = {1, 1.5, 2, 2.5, 3, 4, 5, 6};
    static constexpr double factors[] = {0.97, 1.0, 1.06, 1.09, 1.11, 1.16, 1.27, 1.31};
    for (int i = 0; i < 8; ++i) {
        if (rate <= rates[i]) {
            return static_cast<float>(factors[i]);
        }
    }
    return static_cast<float>(factors[7]);
}

// Importance of the rotated columns, mean 1: that of a rotated column is the mean of those it mixes. Null: all alike.
inline std::vector<float> rotated_importance(uint32_t rotation_block, int64_t n_in, const float *importance) {
    std::vector<float> h(static_cast<size_t>(n_in), 1.0F);
    if (importance == nullptr) {
        return h;
    }
    // The rotated columns j * g + b are mixed from the columns i * g + b.
    const int64_t g = rotation_block > 1 ? n_in / rotation_block : n_in;
    std::vector<double> sum(static_cast<size_t>(g));
    double total = 0;
    for (int64_t i = 0; i < n_in; ++i) {
        sum[static_cast<size_t>(i % g)] += importance[i];
        total += importance[i];
    }
    for (int64_t i = 0; i < n_in; ++i) {
        h[static_cast<size_t>(i)] =
            static_cast<float>(sum[static_cast<size_t>(i % g)] * static_cast<double>(g) / total);
    }
    return h;
}

// Values of all L-bit states, one table a multiplier.
struct StateValues {
    std::vector<int16_t> table[2];
    explicit StateValues(const TrellisSpec &spec) {
        for (int v = 0; v < spec.values_per_step; ++v) {
            table[v].resize(size_t{1} << spec.state_bits);
            for (size_t s = 0; s < table[v].size(); ++s) {
                table[v][s] = static_cast<int16_t>(trellis_value(static_cast<uint16_t>(s), spec.multiplier[v]));
            }
        }
    }
};

// Buffers of one worker.
struct Scratch {
    std::vector<int16_t> target;
    std::vector<uint16_t> cost[2], best, states;
    std::vector<uint8_t> back;
    Scratch(const TrellisSpec &spec, int64_t steps) {
        const size_t n_states = size_t{1} << spec.state_bits;
        const size_t n_groups = n_states >> spec.step_bits;
        const size_t columns = static_cast<size_t>(steps * spec.values_per_step);
        target.resize(columns);
        cost[0].resize(n_states);
        cost[1].resize(n_states);
        best.resize(n_groups + 32); // whole registers are read past the end
        states.resize(static_cast<size_t>(steps));
        back.resize(static_cast<size_t>(steps) * n_groups);
    }
};

// Bits that the error is shifted up before squaring: about the rate, since the typical error halves with every bit.
inline int error_shift(const TrellisSpec &spec) {
    return (spec.step_bits + spec.values_per_step / 2) / spec.values_per_step;
}

// What the search aims at: x value units, with the search's weight. Beyond the largest value the nearest one is the
// target, or the search would see no slope there. NaN, where an error that was fed back overflowed, is 0.
inline int16_t search_target(double x, double weight) {
    constexpr double largest = kTrellisTable1[15] + kTrellisTable2[15];
    return x == x ? static_cast<int16_t>(std::nearbyint(std::clamp(x, -largest, largest) * weight)) : int16_t{0};
}

// Weights of the Viterbi search over columns [begin, end): sqrt of the importance in fixed point, relative to their own
// mean and below kMaxWeight; 1 for padding.
inline void search_weights(const TrellisSpec &spec, const std::vector<float> &importance, int64_t begin, int64_t end,
                           int16_t *out) {
    const double rate = static_cast<double>(spec.step_bits) / spec.values_per_step;
    const double distortion = 1.1 * kTrellisStd * std::exp2(-rate);
    const int64_t n_in = static_cast<int64_t>(importance.size());
    double mean = 0;
    double largest = 0;
    for (int64_t i = begin; i < std::min(end, n_in); ++i) {
        mean += importance[static_cast<size_t>(i)];
        largest = std::max(largest, static_cast<double>(importance[static_cast<size_t>(i)]));
    }
    mean /= static_cast<double>(std::max<int64_t>(1, std::min(end, n_in) - begin));
    // 2^(error_shift - 8) * f * distortion is the square root of the typical cost
    const double typical = std::sqrt(kTypicalCost) * 256.0 / distortion / (1 << error_shift(spec));
    const double unit = std::min(typical / std::sqrt(mean), kMaxWeight / std::sqrt(largest));
    for (int64_t i = begin; i < end; ++i) {
        const double f =
            i < n_in ? std::nearbyint(unit * std::sqrt(static_cast<double>(importance[static_cast<size_t>(i)]))) : 1;
        out[i - begin] = static_cast<int16_t>(std::clamp(f, 1.0, static_cast<double>(kMaxWeight)));
    }
}

} // namespace seeddelta
