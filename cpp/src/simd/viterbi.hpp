// SIMD twin of viterbi_scalar.hpp, for any xsimd architecture. Include inside an instruction-set unit only.
// `Words::expand<K>(p)` gives a register whose lane i is p[i >> K]; `Words::high(a, a)` the upper halves of 16-bit
// products.
#pragma once
#include <xsimd/xsimd.hpp>

#include "simd/viterbi_scalar.hpp"

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

// Cost of one column for a register of states.
template <class Arch, class Words>
struct ColumnCost {
    using I = xsimd::batch<int16_t, Arch>;
    using U = xsimd::batch<uint16_t, Arch>;
    const int16_t *values;
    I target, weight;
    U largest;
    int shift;

    ColumnCost(const ViterbiTask &task, int which, int64_t column)
        : values(task.values[which]), target(task.target[column]), weight(task.weight[column]),
          largest(static_cast<uint16_t>(65535 >> task.error_shift)), shift(task.error_shift) {}

    inline __attribute__((always_inline)) U operator()(int64_t state) const {
        const I difference = xsimd::ssub(target, I::load_unaligned(values + state) * weight);
        const U a = xsimd::min(xsimd::bitwise_cast<uint16_t>(xsimd::abs(difference)), largest) << shift;
        return Words::high(a, a);
    }
};

template <class Arch, int K, class Words>
void viterbi_run(const ViterbiTask &task) {
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
        const ColumnCost<Arch, Words> first(task, 0, column);
        if (task.values_per_step == 1) {
            for (int64_t s = 0; s < n_states; s += lanes) {
                const U carried = Words::template expand<K>(task.best + (s >> K)) - take;
                xsimd::sadd(carried, first(s)).store_unaligned(after + s);
            }
        } else {
            const ColumnCost<Arch, Words> second(task, 1, column + 1);
            for (int64_t s = 0; s < n_states; s += lanes) {
                const U carried = Words::template expand<K>(task.best + (s >> K)) - take;
                xsimd::sadd(carried, xsimd::sadd(first(s), second(s))).store_unaligned(after + s);
            }
        }
        uint16_t *swap = before;
        before = after;
        after = swap;
    }
    viterbi_trace(task, before);
}

template <class Arch, class Words>
void viterbi_simd(const ViterbiTask &task) {
    const int64_t n_groups = int64_t{1} << (task.state_bits - task.step_bits);
    if (n_groups < static_cast<int64_t>(xsimd::batch<uint16_t, Arch>::size)) {
        kernels_scalar().encode.viterbi(task);
        return;
    }
    switch (task.step_bits) {
    case 1:
        return viterbi_run<Arch, 1, Words>(task);
    case 2:
        return viterbi_run<Arch, 2, Words>(task);
    case 3:
        return viterbi_run<Arch, 3, Words>(task);
    case 4:
        return viterbi_run<Arch, 4, Words>(task);
    case 5:
        return viterbi_run<Arch, 5, Words>(task);
    case 6:
        return viterbi_run<Arch, 6, Words>(task);
    default:
        return kernels_scalar().encode.viterbi(task);
    }
}

} // namespace
} // namespace seeddelta
