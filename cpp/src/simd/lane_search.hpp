// SIMD twin of simd/lane_search_scalar.cpp, for any xsimd architecture. Include inside an instruction-set unit only.
// `Words::upper_products(a, a)` gives the upper halves of 16-bit products.
#pragma once
#include <utility>

#include <xsimd/xsimd.hpp>

#include "simd/inline.hpp"
#include "simd/lane_search_scalar.hpp"

namespace seeddelta {
namespace {

template <class Arch, class Words>
struct LaneSearch {
    using I = xsimd::batch<int16_t, Arch>;
    using U = xsimd::batch<uint16_t, Arch>;
    static constexpr int64_t kLanes = I::size;

    static SEEDDELTA_INLINE U distance_to(I target, int value) {
        const I difference = xsimd::ssub(target, I(static_cast<int16_t>(value)));
        return xsimd::bitwise_cast<uint16_t>(xsimd::abs(difference));
    }

    // What every level costs against the targets of one column. `Added`: planes may add to a level.
    template <bool Added>
    static void level_costs(const LaneSearchTask &task, int values, int64_t column, int16_t *out) {
        const U far(static_cast<uint16_t>(lane_near(task.error_shift, values)));
        const U limit(static_cast<uint16_t>((32752 / values) & ~15));
        for (int64_t lane = 0; lane < kSearchRows; lane += kLanes) {
            const I target = I::load_aligned(task.target + column * kSearchRows + lane);
            for (int64_t i = 0; i < task.n_levels; ++i) {
                U distance = distance_to(target, task.levels[i] * task.weight[column]);
                // costs grow with the distance, so the least distance has the least cost
                for (int64_t k = 1; Added && k < task.n_added; ++k) {
                    const int value = (task.levels[i] + task.added[k]) * task.weight[column];
                    distance = xsimd::min(distance, distance_to(target, value));
                }
                const U near = xsimd::min(distance, far);
                const U a = near << task.error_shift;
                const U sum = (U(Words::upper_products(a, a)) >> 1) + (distance - near); // below 2^16
                const U cost = xsimd::min(sum, limit) & U(static_cast<uint16_t>(0xFFF0));
                xsimd::bitwise_cast<int16_t>(cost).store_aligned(out + i * kSearchRows + lane);
            }
        }
    }

    // The best path into every end. Ends lie at older * older_stride + newer * newer_stride in task.cost; the step
    // reads those with one newer code (c1) and writes those with it as the older one, which turns the order: so they
    // may take each other's places, and one array, which the first-level cache holds, does for all steps.
    template <int Values, bool Backwards>
    static void select(const LaneSearchTask &task, const LaneStep &emitted, bool turned, int16_t *least,
                       uint8_t *back) {
        const I mask(static_cast<int16_t>(-16));
        const int64_t stride = kSearchRows * (turned ? 1 : 16); // of c2 and c0
        const int64_t c1_stride = kSearchRows * (turned ? 16 : 1);
        const auto cost_of = [&](int value) { return task.level_cost + value * task.n_levels * kSearchRows; };
        for (int64_t lane = 0; lane < kSearchRows; lane += kLanes) {
            // the costs before the step: the least is 0 (that is, -32768), and c2 stands in the low bits
            const I shift = (I::load_aligned(least + lane) & mask) - I(static_cast<int16_t>(-32768)); // wraps, as below
            alignas(64) uint16_t taken[kLanes];
            xsimd::bitwise_cast<uint16_t>(shift).store_aligned(taken);
            for (int64_t i = 0; i < kLanes; ++i) {
                task.total[lane + i] += taken[i];
            }
            I lowest(static_cast<int16_t>(32767));
            for (int64_t c1 = 0; c1 < 16; ++c1) {
                int16_t *const ends = task.cost + c1 * c1_stride + lane;
                I before[16];
                I first[16]; // by c0 + c2
#pragma GCC unroll 16
                for (int c2 = 0; c2 < 16; ++c2) {
                    const I cost = (I::load_aligned(ends + c2 * stride) & mask) - shift;
                    before[c2] = cost | I(static_cast<int16_t>(c2));
                    first[c2] = I::load_aligned(cost_of(0) + emitted.level[0][c1 * 16 + c2] + lane);
                    if constexpr (Values > 2) { // the third stays below the limit with it
                        first[c2] += I::load_aligned(cost_of(2) + emitted.level[2][c1 * 16 + c2] + lane);
                    }
                }
#pragma GCC unroll 16
                for (int c0 = 0; c0 < 16; ++c0) {
                    I best(static_cast<int16_t>(32767));
#pragma GCC unroll 16
                    for (int c2 = 0; c2 < 16; ++c2) {
                        I path = xsimd::sadd(before[c2], first[(c0 + c2) % 16]);
                        for (int v = 1; v < Values; v += 2) {
                            const int64_t at = (Backwards ? c2 : c0) * kLaneSums + c0 + c1 + c2;
                            path = xsimd::sadd(path, I::load_aligned(cost_of(v) + emitted.level[v][at] + lane));
                        }
                        best = xsimd::min(best, path);
                    }
                    best.store_aligned(ends + c0 * stride);
                    lowest = xsimd::min(lowest, best);
                    alignas(64) uint16_t wide[kLanes];
                    xsimd::bitwise_cast<uint16_t>(best & I(static_cast<int16_t>(15))).store_aligned(wide);
                    for (int64_t i = 0; i < kLanes; ++i) {
                        back[(c1 * 16 + c0) * kSearchRows + lane + i] = static_cast<uint8_t>(wide[i]);
                    }
                }
            }
            lowest.store_aligned(least + lane);
        }
    }

    static void select(const LaneSearchTask &task, const LaneStep &emitted, bool turned, int16_t *least,
                       uint8_t *back) {
        const auto one = [&]<int Values>() {
            if (emitted.backwards && Values > 1) {
                select<Values, true>(task, emitted, turned, least, back);
            } else {
                select<Values, false>(task, emitted, turned, least, back);
            }
        };
        switch (emitted.values) {
        case 1:
            return one.template operator()<1>();
        case 2:
            return one.template operator()<2>();
        case 3:
            return one.template operator()<3>();
        default:
            return one.template operator()<4>();
        }
    }

    static void run(const LaneSearchTask &task) {
        alignas(64) int16_t least[kSearchRows];
        for (int64_t row = 0; row < kSearchRows; ++row) {
            for (int64_t end = 0; end < kLaneEnds; ++end) {
                const bool open = task.start == nullptr || task.start[row] == end;
                task.cost[end * kSearchRows + row] = static_cast<int16_t>(open ? -32768 : 32767);
            }
            least[row] = -32768;
            task.total[row] = 0;
        }
        int64_t column = 0;
        bool turned = false;
        for (int64_t step = 0; step < task.steps; ++step, turned = !turned) {
            const LaneStep &emitted = task.emitted[step];
            for (int v = 0; v < emitted.values; ++v) {
                int16_t *const out = task.level_cost + v * task.n_levels * kSearchRows;
                if (emitted.planes) {
                    level_costs<true>(task, emitted.values, column + v, out);
                } else {
                    level_costs<false>(task, emitted.values, column + v, out);
                }
            }
            column += emitted.values;
            uint8_t *back = task.back + step * kLaneEnds * kSearchRows;
            select(task, emitted, turned, least, back);
        }
        if (turned) {
            turn(task.cost);
        }
    }

    // The ends in their own order: the older code first.
    static void turn(int16_t *cost) {
        for (int64_t older = 0; older < 16; ++older) {
            for (int64_t newer = 0; newer < older; ++newer) {
                for (int64_t row = 0; row < kSearchRows; ++row) {
                    std::swap(cost[(older * 16 + newer) * kSearchRows + row],
                              cost[(newer * 16 + older) * kSearchRows + row]);
                }
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
