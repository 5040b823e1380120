// What the encoder of byte lanes knows of a tensor, whatever the row.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "encode/lane_blocks.hpp"
#include "encode/lane_levels.hpp"
#include "format/lanes.hpp"
#include "seeddelta/encode.hpp"

namespace seeddelta {

// With feedback a value k places behind the block that is decided counts this to the power of k: the errors of the
// other streams change it before its turn. By the squared error of the outputs on another text than the calibration, 1
// costs .5% and .95 .6%.
inline constexpr double kLaneSoft = .98;

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

// What the rows of one tensor share.
struct LaneJob {
    const LanesSpec &spec;
    const LaneCode &code;
    int64_t n_in, steps, prefix;
    LaneBlocks plan;
    std::vector<int32_t> position; // of a column in the order of decision
    std::vector<float> importance; // of the columns in their own order
    LaneLevels levels;
    LaneWeights weights;
    std::vector<double> soft; // what values in sight count

    LaneJob(const LanesSpec &s, int64_t columns, const float *h)
        : spec(s), code(*s.code), n_in(columns), steps(code.stream_steps(columns)),
          prefix(lane_first_group(code, columns)), plan(lane_blocks(code, columns, s.groups)),
          position(static_cast<size_t>(columns)), importance(rotated_importance(s.rotation_block, columns, h)),
          levels(code), weights(code) {
        for (size_t i = 0; i < plan.order.size(); ++i) {
            position[static_cast<size_t>(plan.order[i])] = static_cast<int32_t>(i);
        }
        for (double share = 1; static_cast<int64_t>(soft.size()) < kLaneMostEmits * s.lookahead;
             share *= s.feedback != nullptr ? kLaneSoft : 1) {
            soft.push_back(share);
        }
    }
    // What a value counts that lies so far behind the block that is decided.
    double softened(int64_t behind) const { return behind < 0 ? 1 : soft[static_cast<size_t>(behind)]; }
    int64_t longest_search() const {
        int64_t longest = 0;
        for (const LaneBlock &block : plan.blocks) {
            longest = std::max(longest, block.steps);
        }
        return longest + prefix + spec.lookahead;
    }
};

} // namespace seeddelta
