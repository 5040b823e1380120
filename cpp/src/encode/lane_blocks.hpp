// The order in which the encoder decides the codes of the lane code: groups of steps, in each group one stream after
// the other, so that what a stream gets wrong is made up for by the streams and the steps after it.
#pragma once
#include <cstdint>
#include <vector>

#include "format/lanes.hpp"

namespace seeddelta {

// Steps [step, step + steps) of one stream, whose columns are `order[begin, end)`.
struct LaneBlock {
    int64_t stream, step, steps, begin, end;
};

struct LaneBlocks {
    std::vector<int32_t> order; // [n_in] columns in the order of decision
    std::vector<LaneBlock> blocks;
};

// Values that a stream emits before a step.
int64_t lane_values_before(const LaneCode &code, int64_t step);

// The steps that the first group has at least: a stream's start is found together with them.
int64_t lane_first_group(const LaneCode &code, int64_t n_in);

// groups: steps of each; they add up to code.stream_steps(n_in), and the first is no less than lane_first_group.
LaneBlocks lane_blocks(const LaneCode &code, int64_t n_in, const std::vector<int64_t> &groups);

} // namespace seeddelta
