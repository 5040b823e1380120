// SIMD twin of encode/viterbi.cpp, for any xsimd architecture. Include inside an instruction-set unit only.
// `Expand::load<K>(p)` gives a register whose lane i is p[i >> K].
#pragma once
#include <xsimd/xsimd.hpp>

#include "encode/viterbi.hpp"

namespace seeddelta {
namespace {

// Least path cost into every group of states, and which predecessor it came from. Returns the least of all.
template <class Arch, int K>
uint16_t viterbi_select(const uint16_t *before, int64_t n_groups, uint16_t *best, uint8_t *back) {
    using U = xsimd::batch<uint16_t, Arch>;
    constexpr int64_t lanes = U::size;
    U least(static_cast<uint16_t>(65535));
    for (int64_t group = 0; group < n_groups; group += lanes) {
        U low = U::load_unaligned(before + group);
        U from(static_cast<uint16_t>(0));
        for (int p = 1; p < (1 << K); ++p) {
            const U next = xsimd::min(low, U::load_unaligned(before + group + p * n_groups));
            from = xsimd::select(next == low, from, U(static_cast<uint16_t>(p)));
            low = next;
        }
        least = xsimd::min(least, low);
        low.store_unaligned(best + group);
        alignas(64) uint16_t wide[lanes];
        from.store_aligned(wide);
        for (int64_t i = 0; i < lanes; ++i) {
            back[group + i] = static_cast<uint8_t>(wide[i]);
        }
    }
    return xsimd::reduce_min(least);
}

template <class Arch>
inline __attribute__((always_inline)) xsimd::batch<uint16_t, Arch>
column_cost(const int16_t *values, xsimd::batch<int16_t, Arch> target, xsimd::batch<int16_t, Arch> weight) {
    using I = xsimd::batch<int16_t, Arch>;
    using U = xsimd::batch<uint16_t, Arch>;
    const I difference = xsimd::ssub(target, I::load_unaligned(values) * weight);
    const U error =
        xsimd::min(xsimd::bitwise_cast<uint16_t>(xsimd::abs(difference)) >> kErrorShift, U(static_cast<uint16_t>(kMaxError)));
    return error * error;
}

template <class Arch, int K, class Expand>
void viterbi_run(const ViterbiTask &task) {
    using I = xsimd::batch<int16_t, Arch>;
    using U = xsimd::batch<uint16_t, Arch>;
    constexpr int64_t lanes = U::size;
    const int64_t n_states = int64_t{1} << task.state_bits;
    const int64_t n_groups = n_states >> K;
    uint16_t *before = task.cost[0];
    uint16_t *after = task.cost[1];
    for (int64_t s = 0; s < n_states; ++s) {
        before[s] = task.start_state < 0 ? uint16_t{0} : uint16_t{65535};
    }
    if (task.start_state >= 0) {
        before[task.start_state] = 0;
    }
    for (int64_t step = 0; step < task.steps; ++step) {
        const uint16_t least = viterbi_select<Arch, K>(before, n_groups, task.best, task.back + step * n_groups);
        const U take(least);
        const int64_t column = step * task.values_per_step;
        const I target0(task.target[column]);
        const I weight0(task.weight[column]);
        if (task.values_per_step == 1) {
            for (int64_t s = 0; s < n_states; s += lanes) {
                const U carried = Expand::template load<K>(task.best + (s >> K)) - take;
                const U cost = column_cost<Arch>(task.values[0] + s, target0, weight0);
                xsimd::sadd(carried, cost).store_unaligned(after + s);
            }
        } else {
            const I target1(task.target[column + 1]);
            const I weight1(task.weight[column + 1]);
            for (int64_t s = 0; s < n_states; s += lanes) {
                const U carried = Expand::template load<K>(task.best + (s >> K)) - take;
                const U cost = xsimd::sadd(column_cost<Arch>(task.values[0] + s, target0, weight0),
                                           column_cost<Arch>(task.values[1] + s, target1, weight1));
                xsimd::sadd(carried, cost).store_unaligned(after + s);
            }
        }
        uint16_t *swap = before;
        before = after;
        after = swap;
    }
    viterbi_trace(task, before);
}

template <class Arch, class Expand>
void viterbi_simd(const ViterbiTask &task) {
    const int64_t n_groups = int64_t{1} << (task.state_bits - task.step_bits);
    if (n_groups < static_cast<int64_t>(xsimd::batch<uint16_t, Arch>::size)) {
        kernels_scalar().viterbi(task);
        return;
    }
    switch (task.step_bits) {
    case 1: return viterbi_run<Arch, 1, Expand>(task);
    case 2: return viterbi_run<Arch, 2, Expand>(task);
    case 3: return viterbi_run<Arch, 3, Expand>(task);
    case 4: return viterbi_run<Arch, 4, Expand>(task);
    case 5: return viterbi_run<Arch, 5, Expand>(task);
    case 6: return viterbi_run<Arch, 6, Expand>(task);
    default: return kernels_scalar().viterbi(task);
    }
}

} // namespace
} // namespace seeddelta
