// SIMD twin of simd/lane_search_scalar.cpp, for any xsimd architecture. Include inside an instruction-set unit only.
// `Words::high(a, a)` gives the upper halves of 16-bit products.
#pragma once
#include <xsimd/xsimd.hpp>

#include "simd/lane_search_scalar.hpp"

namespace seeddelta {
namespace {

template <class Arch, class Words>
struct LaneSearch {
    using I = xsimd::batch<int16_t, Arch>;
    using U = xsimd::batch<uint16_t, Arch>;
    static constexpr int64_t kLanes = I::size;

    // What every level costs against the targets of one column.
    static void level_costs(const LaneSearchTask &task, int values, int64_t column, int16_t *out) {
        const U largest(static_cast<uint16_t>(65535 >> task.error_shift));
        const I limit(static_cast<int16_t>((32752 / values) & ~15));
        for (int64_t lane = 0; lane < kSearchRows; lane += kLanes) {
            const I target = I::load_aligned(task.target + column * kSearchRows + lane);
            for (int64_t i = 0; i < task.n_levels; ++i) {
                const I difference = xsimd::ssub(target, I(static_cast<int16_t>(task.levels[i] * task.weight[column])));
                const U a = xsimd::min(xsimd::bitwise_cast<uint16_t>(xsimd::abs(difference)), largest)
                            << task.error_shift;
                const I cost =
                    xsimd::bitwise_cast<int16_t>((Words::high(a, a) >> 1) & U(static_cast<uint16_t>(0xFFF0)));
                xsimd::min(cost, limit).store_aligned(out + i * kSearchRows + lane);
            }
        }
    }

    // The costs before a step: the least is 0 (that is, -32768), and c2 stands in the low bits.
    static void prepare(const LaneSearchTask &task) {
        const I mask(static_cast<int16_t>(-16));
        for (int64_t lane = 0; lane < kSearchRows; lane += kLanes) {
            I least = I::load_aligned(task.cost + lane);
            for (int64_t end = 1; end < kLaneEnds; ++end) {
                least = xsimd::min(least, I::load_aligned(task.cost + end * kSearchRows + lane));
            }
            const I shift = (least & mask) - I(static_cast<int16_t>(-32768)); // wraps, as the difference below does
            for (int64_t end = 0; end < kLaneEnds; ++end) {
                const I cost = (I::load_aligned(task.cost + end * kSearchRows + lane) & mask) - shift;
                (cost | I(static_cast<int16_t>(end >> 4))).store_aligned(task.before + end * kSearchRows + lane);
            }
            alignas(64) uint16_t taken[kLanes];
            xsimd::bitwise_cast<uint16_t>(shift).store_aligned(taken);
            for (int64_t i = 0; i < kLanes; ++i) {
                task.total[lane + i] += taken[i];
            }
        }
    }

    // The best path into every end.
    template <int Values>
    static void select(const LaneSearchTask &task, const LaneStep &emitted, uint8_t *back) {
        const int16_t *first = task.level_cost;
        const int16_t *second = first + task.n_levels * kSearchRows;
        for (int64_t lane = 0; lane < kSearchRows; lane += kLanes) {
            for (int64_t c1 = 0; c1 < 16; ++c1) {
                I before[16];
                for (int64_t c2 = 0; c2 < 16; ++c2) {
                    before[c2] = I::load_aligned(task.before + (c2 * 16 + c1) * kSearchRows + lane);
                }
                for (int64_t end = c1 * 16; end < c1 * 16 + 16; ++end) {
                    I best(static_cast<int16_t>(32767));
                    for (int64_t c2 = 0; c2 < 16; ++c2) {
                        I path = before[c2];
                        if constexpr (Values > 0) {
                            path = xsimd::sadd(path, I::load_aligned(first + emitted.level[0][end * 16 + c2] + lane));
                        }
                        if constexpr (Values > 1) {
                            path = xsimd::sadd(path, I::load_aligned(second + emitted.level[1][end * 16 + c2] + lane));
                        }
                        best = xsimd::min(best, path);
                    }
                    best.store_aligned(task.cost + end * kSearchRows + lane);
                    alignas(64) uint16_t wide[kLanes];
                    xsimd::bitwise_cast<uint16_t>(best & I(static_cast<int16_t>(15))).store_aligned(wide);
                    for (int64_t i = 0; i < kLanes; ++i) {
                        back[end * kSearchRows + lane + i] = static_cast<uint8_t>(wide[i]);
                    }
                }
            }
        }
    }

    static void run(const LaneSearchTask &task) {
        for (int64_t end = 0; end < kLaneEnds; ++end) {
            for (int64_t row = 0; row < kSearchRows; ++row) {
                const bool open = task.start == nullptr || task.start[row] == end;
                task.cost[end * kSearchRows + row] = static_cast<int16_t>(open ? -32768 : 32767);
            }
        }
        for (int64_t row = 0; row < kSearchRows; ++row) {
            task.total[row] = 0;
        }
        int64_t column = 0;
        for (int64_t step = 0; step < task.steps; ++step) {
            const LaneStep &emitted = task.emitted[step];
            for (int v = 0; v < emitted.values; ++v) {
                level_costs(task, emitted.values, column + v, task.level_cost + v * task.n_levels * kSearchRows);
            }
            column += emitted.values;
            prepare(task);
            uint8_t *back = task.back + step * kLaneEnds * kSearchRows;
            switch (emitted.values) {
            case 0:
                select<0>(task, emitted, back);
                break;
            case 1:
                select<1>(task, emitted, back);
                break;
            default:
                select<2>(task, emitted, back);
                break;
            }
        }
    }
};

template <class Arch, class Words>
void lane_search_simd(const LaneSearchTask &task) {
    LaneSearch<Arch, Words>::run(task);
}

} // namespace
} // namespace seeddelta
