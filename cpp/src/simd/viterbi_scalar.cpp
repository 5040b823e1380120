#include "simd/viterbi_scalar.hpp"

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace seeddelta {

static int step_cost(const ViterbiTask &task, int64_t step, int64_t state) {
    int total = 0;
    for (int v = 0; v < task.values_per_step; ++v) {
        const int64_t column = step * task.values_per_step + v;
        const int difference = task.target[column] - task.values[v][state] * task.weight[column];
        const auto error = static_cast<uint32_t>(std::abs(std::clamp(difference, -32768, 32767)));
        const uint32_t a = std::min(error, 65535U >> task.error_shift) << task.error_shift;
        total = std::min(total + static_cast<int>((a * a) >> 16), 65535);
    }
    return total;
}

void viterbi_trace(const ViterbiTask &task, const uint16_t *cost) {
    const int64_t n_states = int64_t{1} << task.state_bits;
    const int64_t n_groups = n_states >> task.step_bits;
    const int64_t first = task.end_group < 0 ? 0 : task.end_group;
    const int64_t stride = task.end_group < 0 ? 1 : n_groups;
    int64_t state = first;
    for (int64_t s = first; s < n_states; s += stride) {
        state = cost[s] < cost[state] ? s : state;
    }
    for (int64_t step = task.steps - 1; step >= 0; --step) {
        task.states[step] = static_cast<uint16_t>(state);
        const int64_t group = state >> task.step_bits;
        state = group + task.back[step * n_groups + group] * n_groups;
    }
}

void viterbi_scalar(const ViterbiTask &task) {
    const int64_t n_states = int64_t{1} << task.state_bits;
    const int64_t n_groups = n_states >> task.step_bits;
    const int n_predecessors = 1 << task.step_bits;
    uint16_t *before = task.cost[0];
    uint16_t *after = task.cost[1];
    std::fill(before, before + n_states, task.start_state < 0 ? uint16_t{0} : uint16_t{65535});
    if (task.start_state >= 0) {
        before[task.start_state] = 0;
    }
    for (int64_t step = 0; step < task.steps; ++step) {
        uint8_t *back = task.back + step * n_groups;
        uint16_t least = 65535;
        for (int64_t group = 0; group < n_groups; ++group) {
            uint16_t best = before[group];
            uint8_t from = 0;
            for (int p = 1; p < n_predecessors; ++p) {
                if (before[group + p * n_groups] < best) {
                    best = before[group + p * n_groups];
                    from = static_cast<uint8_t>(p);
                }
            }
            task.best[group] = best;
            back[group] = from;
            least = std::min(least, best);
        }
        for (int64_t state = 0; state < n_states; ++state) {
            const int carried = task.best[state >> task.step_bits] - least;
            after[state] = static_cast<uint16_t>(std::min(carried + step_cost(task, step, state), 65535));
        }
        std::swap(before, after);
    }
    viterbi_trace(task, before);
}

} // namespace seeddelta
