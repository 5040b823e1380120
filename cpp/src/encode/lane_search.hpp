// Searches of kSearchRows streams of a lane code by one worker: the kernel's buffers, and what the codes before a
// stream cost.
#pragma once
#include <algorithm>
#include <limits>

#include "encode/aligned.hpp"
#include "encode/lane_levels.hpp"
#include "simd/kernel_table.hpp"
#include "simd/lane_search_scalar.hpp"

namespace seeddelta {

class LaneSearch {
public:
    LaneSearch(const LaneLevels &levels, int error_shift, int64_t longest)
        : levels_(levels), error_shift_(error_shift), level_cost_(kLaneMostEmits * levels.levels.size() * kSearchRows),
          cost_(kLaneEnds * kSearchRows), back_(static_cast<size_t>(longest) * kLaneEnds * kSearchRows) {}

    // `count` steps. target [values, kSearchRows], weight [values]; from the ends in `start`, or null: from any.
    void run(const LaneStep *emitted, int64_t count, const int16_t *target, const int16_t *weight,
             const int16_t *start) {
        task_ = {emitted,
                 count,
                 levels_.levels.data(),
                 static_cast<int64_t>(levels_.levels.size()),
                 levels_.added.data(),
                 static_cast<int64_t>(levels_.added.size()),
                 error_shift_,
                 target,
                 weight,
                 start,
                 level_cost_.data(),
                 cost_.data(),
                 total_,
                 back_.data()};
        kernels().encode.lane_search(task_);
    }

    // What the row costs that ends so.
    int32_t cost(int64_t end, int64_t row) const {
        return total_[row] + (cost_[static_cast<size_t>(end * kSearchRows + row)] & ~15);
    }
    // The first `steps` codes of the row that ends so.
    void trace(int64_t steps, int end, int64_t row, uint8_t *codes) const {
        lane_trace(task_, steps, end, row, codes, 1);
    }

    // Prices of the two codes before a stream, by their number as an end.
    void clear_prices() { std::fill_n(price_, kLaneEnds * kSearchRows, 0); }
    void set_price(int64_t end, int64_t row, int32_t price) { price_[end * kSearchRows + row] = price; }
    // Adds what the last search came to. Backwards it ended with the two in the other order.
    void add_prices(bool backwards) {
        for (int64_t end = 0; end < kLaneEnds; ++end) {
            const int64_t from = backwards ? end % 16 * 16 + end / 16 : end;
            for (int64_t r = 0; r < kSearchRows; ++r) {
                price_[end * kSearchRows + r] += cost(from, r) >> 4;
            }
        }
    }
    // The prices so far, for kept_price.
    void keep_prices() { std::copy_n(price_, kLaneEnds * kSearchRows, kept_); }
    int32_t kept_price(int64_t end, int64_t row) const { return kept_[end * kSearchRows + row]; }
    // The cheapest of those not taken yet.
    int16_t take_cheapest(int64_t row) {
        int64_t best = 0;
        for (int64_t end = 1; end < kLaneEnds; ++end) {
            best = price_[end * kSearchRows + row] < price_[best * kSearchRows + row] ? end : best;
        }
        price_[best * kSearchRows + row] = std::numeric_limits<int32_t>::max();
        return static_cast<int16_t>(best);
    }

private:
    const LaneLevels &levels_;
    int error_shift_;
    LaneSearchTask task_ = {};
    AlignedVector<int16_t> level_cost_, cost_;
    AlignedVector<uint8_t> back_;
    int32_t total_[kSearchRows] = {};
    int32_t price_[kLaneEnds * kSearchRows] = {};
    int32_t kept_[kLaneEnds * kSearchRows] = {};
};

} // namespace seeddelta
