#include "encode/lane_blocks.hpp"

#include <algorithm>
#include <stdexcept>

namespace seeddelta {

int64_t lane_values_before(const LaneCode &code, int64_t step) {
    int64_t values = step / code.steps * code.values;
    for (int64_t s = 0; s < step % code.steps; ++s) {
        values += code.emits[s];
    }
    return values;
}

int64_t lane_first_group(const LaneCode &code, int64_t n_in) {
    return std::min(kPrefixSteps, code.stream_steps(n_in));
}

LaneBlocks lane_blocks(const LaneCode &code, int64_t n_in, const std::vector<int64_t> &groups) {
    LaneBlocks out;
    int64_t step = 0;
    for (const int64_t steps : groups) {
        if (steps < 1 || (step == 0 && steps < lane_first_group(code, n_in))) {
            throw std::invalid_argument("groups must have steps, the first " +
                                        std::to_string(lane_first_group(code, n_in)) + " at least");
        }
        const int64_t first = lane_values_before(code, step);
        const int64_t last = lane_values_before(code, step + steps);
        for (int64_t stream = 0; stream < kStreams; ++stream) {
            const auto begin = static_cast<int64_t>(out.order.size());
            for (int64_t value = first; value < last && value * kStreams + stream < n_in; ++value) {
                out.order.push_back(static_cast<int32_t>(value * kStreams + stream));
            }
            out.blocks.push_back({stream, step, steps, begin, static_cast<int64_t>(out.order.size())});
        }
        step += steps;
    }
    if (step != code.stream_steps(n_in)) {
        throw std::invalid_argument("groups must add up to " + std::to_string(code.stream_steps(n_in)) + " steps");
    }
    return out;
}

} // namespace seeddelta
