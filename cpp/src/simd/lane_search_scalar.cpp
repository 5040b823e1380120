#include "simd/lane_search_scalar.hpp"

#include <algorithm>
#include <cstdlib>

namespace seeddelta {

static constexpr int kLow = -32768;
static constexpr int kHigh = 32767;

static int saturate(int x) {
    return std::clamp(x, kLow, kHigh);
}

static int level_cost(const LaneSearchTask &task, const LaneStep &emitted, int64_t column, int64_t row, int level) {
    const int values = emitted.values;
    uint32_t distance = 65535;
    for (int64_t i = 0; i < (emitted.planes ? task.n_added : 1); ++i) {
        const int value = level + task.added[i];
        const int error = saturate(task.target[column * kSearchRows + row] - value * task.weight[column]);
        distance = std::min(distance, static_cast<uint32_t>(std::abs(error)));
    }
    const uint32_t near = std::min(distance, lane_near(task.error_shift, values));
    const uint32_t a = near << task.error_shift;
    return std::min(static_cast<int>(((a * a >> 17) + distance - near) & ~15U), (32752 / values) & ~15);
}

static int level_index(const LaneStep &emitted, int value, int c0, int c1, int c2) {
    const uint16_t *level = emitted.level[value];
    if (value % 2 == 0) {
        return level[c1 * 16 + (c0 + c2) % 16];
    }
    return level[(emitted.backwards ? c2 : c0) * kLaneSums + c0 + c1 + c2];
}

static void search_row(const LaneSearchTask &task, int64_t row) {
    int cost[kLaneEnds];
    int before[kLaneEnds];
    for (int end = 0; end < kLaneEnds; ++end) {
        cost[end] = task.start == nullptr || task.start[row] == end ? kLow : kHigh;
    }
    task.total[row] = 0;
    int64_t column = 0;
    for (int64_t step = 0; step < task.steps; ++step) {
        const LaneStep &emitted = task.emitted[step];
        int least = kHigh;
        for (const int c : cost) {
            least = std::min(least, c & ~15);
        }
        for (int end = 0; end < kLaneEnds; ++end) {
            before[end] = ((cost[end] & ~15) - least + kLow) | (end >> 4);
        }
        task.total[row] += least - kLow;
        for (int end = 0; end < kLaneEnds; ++end) {
            int best = kHigh;
            for (int c2 = 0; c2 < 16; ++c2) {
                int path = before[c2 * 16 + end / 16];
                for (int v = 0; v < emitted.values; ++v) {
                    const int level = task.levels[level_index(emitted, v, end % 16, end / 16, c2) / kSearchRows];
                    path = saturate(path + level_cost(task, emitted, column + v, row, level));
                }
                best = std::min(best, path);
            }
            cost[end] = best;
            task.back[(step * kLaneEnds + end) * kSearchRows + row] = static_cast<uint8_t>(best & 15);
        }
        column += emitted.values;
    }
    for (int end = 0; end < kLaneEnds; ++end) {
        task.cost[end * kSearchRows + row] = static_cast<int16_t>(cost[end]);
    }
}

void lane_search_scalar(const LaneSearchTask &task) {
    for (int64_t row = 0; row < kSearchRows; ++row) {
        search_row(task, row);
    }
}

int lane_trace(const LaneSearchTask &task, int64_t steps, int end, int64_t row, uint8_t *out, int64_t stride) {
    for (int64_t step = steps - 1; step >= 0; --step) {
        out[step * stride] = static_cast<uint8_t>(end & 15);
        end = task.back[(step * kLaneEnds + end) * kSearchRows + row] << 4 | end >> 4;
    }
    return end;
}

} // namespace seeddelta
