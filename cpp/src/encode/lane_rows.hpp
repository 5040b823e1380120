// Rows on their way through the encoder of byte lanes: block after block, stream after stream.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <tuple>
#include <vector>

#include "encode/aligned.hpp"
#include "encode/lane_job.hpp"
#include "encode/lane_search.hpp"

namespace seeddelta {

// The rows of one worker, each in `beam_width` lanes of the search. With feedback a lane has codes of its own; where
// they differ, what is left to encode differs, too. After each block those lanes of a row go on that cost least
// (M-algorithm: Anderson, Mohan 1984), so that a row's early errors are those which suit its late columns. Without
// feedback streams have nothing to do with each other, and the lanes of a row differ in their scale.
class LaneRows {
public:
    explicit LaneRows(const LaneJob &job)
        : job_(job), beam_(job.spec.beam_width), chooses_(beam_ > 1 && job.spec.feedback != nullptr),
          value_(static_cast<size_t>(kSearchRows * job.n_in)), error_(value_.size()),
          codes_(static_cast<size_t>(kSearchRows * kStreams * job.steps)), bits_(codes_.size()),
          search_(job.levels, job.weights.error_shift, job.longest_search()) {}

    // rows [count, n_in], rotated
    void load(const float *rows, int64_t count) {
        lanes_ = count * beam_;
        std::fill(value_.begin(), value_.end(), 0.0F);
        for (int64_t r = 0; r < kSearchRows; ++r) {
            spent_[r] = !chooses_ || r % beam_ == 0 ? 0 : kUnused; // the others begin when there are choices
            double energy = 0;
            for (int64_t i = 0; r < lanes_ && i < job_.n_in; ++i) {
                const float w = rows[r / beam_ * job_.n_in + job_.plan.order[static_cast<size_t>(i)]];
                value_[static_cast<size_t>(r * job_.n_in + i)] = w;
                energy += static_cast<double>(w) * w;
            }
            const double factor = job_.spec.scale_factor > 0 ? job_.spec.scale_factor : kLaneScaleFactor;
            unit_[r] = std::sqrt(energy / static_cast<double>(job_.n_in)) * factor * scale_of(r) / job_.code.deviation;
        }
    }

    void encode() {
        for (const LaneBlock &block : job_.plan.blocks) {
            int64_t step = block.step;
            if (step == 0) {
                decide_prefix(block.stream);
                step = job_.prefix;
            }
            if (step < block.step + block.steps) {
                decide(block, step);
            } else {
                for (int64_t r = 0; r < lanes_; ++r) {
                    spend(r, block);
                }
            }
            if (job_.spec.feedback != nullptr && block.end < job_.n_in) {
                feed_back(block);
            }
        }
    }

    // The lane that has the row's codes, with feedback.
    int64_t lane_of(int64_t row) const {
        int64_t best = row * beam_;
        for (int64_t r = best; r < (row + 1) * beam_; ++r) {
            best = spent_[r] < spent_[best] ? r : best;
        }
        return best;
    }
    const uint8_t *codes(int64_t lane, int64_t stream) const { return codes_.data() + at(lane, stream, 0); }
    const uint8_t *bits(int64_t lane, int64_t stream) const { return bits_.data() + at(lane, stream, 0); }
    bool is_zero(int64_t lane) const { return unit_[lane] == 0; }

    // Values of the lane's codes at the steps [step, step + count) of a stream, to take(column, value).
    template <class Take>
    void values(int64_t lane, int64_t stream, int64_t step, int64_t count, Take take) const {
        const uint8_t *c = codes(lane, stream);
        const uint8_t *b = bits(lane, stream);
        int64_t column = lane_values_before(job_.code, step) * kStreams + stream;
        for (int64_t t = step; t < step + count; ++t) {
            const int c1 = c[t >= 1 ? t - 1 : job_.prefix - 1];
            const int c2 = c[t >= 2 ? t - 2 : job_.prefix - 2 + t];
            const auto phase = static_cast<size_t>(t % job_.code.steps);
            for (int i = 0; i < job_.code.emits[phase]; ++i, column += kStreams) {
                if (column < job_.n_in) {
                    const int value = job_.levels.first_value[phase] + i;
                    const auto bits = static_cast<size_t>(job_.code.bits_of(b[t], i));
                    take(column, lane_value(job_.code, value, i, c[t], c1, c2) + job_.levels.added[bits]);
                }
            }
        }
    }

private:
    static constexpr int64_t kSight = 16; // steps that tell which codes suit the ends of a tail-biting prefix
    // Of a survivor's block: 2 cost 1% of the outputs' error, 8 gain nothing.
    static constexpr int64_t kAlternatives = 4;
    // Of the cost in sight beside what is spent; .3 to .5 are alike, 1 costs 1%.
    static constexpr double kSightShare = .4;
    // Scales of a row that are tried without feedback, from the highest to the lowest over the middle one. Of rows of
    // 576 Gaussians 4 beam_width have 2% less error than 1 (.10 to .30 are alike), 16 have 3% (.12: 2%, .36: 3%).
    static constexpr double kScales = .22;
    // And pairs of codes that end a stream's tail-biting prefix, at least, else half as many as beam_width: twice as
    // many gain .1%.
    static constexpr int64_t kPrefixTrials = 4;
    static constexpr double kUnused = std::numeric_limits<double>::infinity();
    static constexpr double kMost = 1e300; // where what was fed back overflowed

    size_t at(int64_t lane, int64_t stream, int64_t step) const {
        return static_cast<size_t>((lane * kStreams + stream) * job_.steps + step);
    }

    // What a lane multiplies its row's scale with.
    double scale_of(int64_t lane) const {
        const double place = (static_cast<double>(lane % beam_) + .5) / static_cast<double>(beam_);
        return chooses_ ? 1 : 1 + kScales * (place - .5);
    }

    // Fixes the weights' unit for searches within the steps [step, step + count) of a stream.
    void weigh(int64_t stream, int64_t step, int64_t count) {
        std::vector<float> importance;
        for (int64_t value = lane_values_before(job_.code, step); value < lane_values_before(job_.code, step + count);
             ++value) {
            const int64_t column = value * kStreams + stream;
            importance.push_back(column < job_.n_in ? job_.importance[static_cast<size_t>(column)] : 0.0F);
        }
        weight_unit_ = job_.weights.unit(importance);
    }

    // Searches the steps [step, step + count) of a stream from the ends in start_ (or from any), or backwards.
    void search(int64_t stream, int64_t step, int64_t count, bool from_start, bool backwards = false) {
        emitted_.clear();
        columns_.clear();
        for (int64_t i = 0; i < count; ++i) {
            const int64_t t = backwards ? step + count - 1 - i : step + i;
            const auto phase = static_cast<size_t>(t % job_.code.steps);
            emitted_.push_back(backwards ? job_.levels.backwards[phase] : job_.levels.forwards[phase]);
            for (int v = 0; v < job_.code.emits[phase]; ++v) {
                columns_.push_back((lane_values_before(job_.code, t) + v) * kStreams + stream);
            }
        }
        set_targets();
        search_.run(emitted_.data(), count, target_.data(), weight_.data(), from_start ? start_ : nullptr);
    }

    void set_targets() {
        weight_.resize(columns_.size());
        target_.resize(columns_.size() * kSearchRows);
        for (size_t i = 0; i < columns_.size(); ++i) {
            int16_t *target = target_.data() + i * kSearchRows;
            if (columns_[i] >= job_.n_in) {
                weight_[i] = 1;
                std::fill_n(target, kSearchRows, int16_t{0});
                continue;
            }
            const double softened = weight_unit_ * job_.softened(columns_[i] / kStreams - firm_);
            weight_[i] = LaneWeights::weight(softened, job_.importance[static_cast<size_t>(columns_[i])]);
            for (int64_t r = 0; r < kSearchRows; ++r) {
                const double x = job_.levels.clamped(weight_of(r, columns_[i]));
                target[r] = static_cast<int16_t>(std::nearbyint(x * weight_[i]));
            }
        }
    }

    // What is left to encode of a weight, in units of the tables; 0 where what was fed back overflowed.
    double weight_of(int64_t lane, int64_t column) const {
        const float value = value_[static_cast<size_t>(lane * job_.n_in + job_.position[static_cast<size_t>(column)])];
        const double x = unit_[lane] > 0 ? value / unit_[lane] : 0.0;
        return x == x ? x : 0.0;
    }

    // What each pair of codes costs that ends the prefix of a stream and begins it, by all it touches: the end of the
    // prefix, its begin, and what follows.
    void price_ends(int64_t stream, int64_t after) {
        if (after > 0) {
            search(stream, job_.prefix, after, false, true);
            search_.add_prices(true);
        }
        search_.keep_prices();
        search(stream, job_.prefix - kSight, kSight, false);
        search_.add_prices(false);
        search(stream, 0, kSight, false, true);
        search_.add_prices(true);
    }

    // The same where the prefix is too short for its end and its begin to be apart: every pair is tried.
    void price_short_prefix(int64_t stream) {
        for (int end = 0; end < kLaneEnds; ++end) {
            std::fill_n(start_, kSearchRows, static_cast<int16_t>(end));
            search(stream, 0, job_.prefix, true);
            for (int64_t r = 0; r < kSearchRows; ++r) {
                search_.set_price(end, r, search_.cost(end, r) >> 4);
            }
        }
    }

    // The first steps of a stream, whose last two codes are those before its first: a pair is chosen, then the prefix
    // is searched between the two. Of several pairs that one stays which costs least with what follows.
    void decide_prefix(int64_t stream) {
        const int64_t after = std::min(job_.steps - job_.prefix, kSight);
        weigh(stream, 0, job_.prefix + after);
        search_.clear_prices();
        if (job_.prefix < kSight) {
            price_short_prefix(stream);
        } else {
            price_ends(stream, after);
        }
        const int64_t trials = chooses_ || beam_ == 1 || job_.prefix < kSight ? 1 : std::max(kPrefixTrials, beam_ / 2);
        int32_t least[kSearchRows];
        for (int64_t trial = 0; trial < trials; ++trial) {
            for (int64_t r = 0; r < kSearchRows; ++r) {
                start_[r] = search_.take_cheapest(r);
            }
            search(stream, 0, job_.prefix, true);
            for (int64_t r = 0; r < kSearchRows; ++r) {
                const int32_t cost = (search_.cost(start_[r], r) >> 4) + search_.kept_price(start_[r], r);
                if (trial == 0 || cost < least[r]) {
                    least[r] = cost;
                    search_.trace(job_.prefix, start_[r], r, codes_.data() + at(r, stream, 0));
                }
            }
        }
    }

    // Steps of a block from `step` on, given those before, with those that follow in sight. What a pair of codes at the
    // block's end costs: the best path there, and the best one on from there.
    void decide(const LaneBlock &block, int64_t step) {
        const int64_t stream = block.stream;
        const int64_t count = block.step + block.steps - step;
        const int64_t after = std::min(job_.spec.lookahead, job_.steps - step - count);
        weigh(stream, step, count + after);
        firm_ = lane_values_before(job_.code, step + count);
        search_.clear_prices();
        if (after > 0) {
            search(stream, step + count, after, false, true);
            search_.add_prices(true);
        }
        search_.keep_prices();
        for (int64_t r = 0; r < kSearchRows; ++r) {
            start_[r] = static_cast<int16_t>(codes(r, stream)[step - 2] * 16 + codes(r, stream)[step - 1]);
        }
        search(stream, step, count, true);
        search_.add_prices(false);
        firm_ = std::numeric_limits<int64_t>::max();
        if (chooses_) {
            for (int64_t row = 0; row * beam_ < lanes_; ++row) {
                choose(row, block, step);
            }
            return;
        }
        for (int64_t r = 0; r < kSearchRows; ++r) {
            search_.trace(count, search_.take_cheapest(r), r, codes_.data() + at(r, stream, step));
            spend(r, block);
        }
    }

    struct Choice {
        double key, spent;
        int64_t lane, alternative;
        bool operator<(const Choice &other) const {
            return std::tie(key, lane, alternative) < std::tie(other.key, other.lane, other.alternative);
        }
    };

    // Of all beam_width' best codes those are kept that cost least, so far and in sight.
    void choose(int64_t row, const LaneBlock &block, int64_t step) {
        const int64_t count = block.step + block.steps - step;
        const int64_t first = row * beam_;
        choices_.clear();
        found_.resize(static_cast<size_t>(beam_ * kAlternatives * count));
        const double unit = job_.weights.squared(weight_unit_) * unit_[first] * unit_[first];
        for (int64_t r = first; r < first + beam_; ++r) {
            const double spent = spent_[r];
            for (int64_t a = 0; spent < kUnused && a < kAlternatives; ++a) {
                const int16_t end = search_.take_cheapest(r);
                uint8_t *codes = codes_.data() + at(r, block.stream, step);
                search_.trace(count, end, r, codes);
                std::copy_n(codes, count, found(r - first, a, count));
                spent_[r] = spent;
                spend(r, block);
                choices_.push_back(
                    {spent_[r] + kSightShare * unit * search_.kept_price(end, r), spent_[r], r - first, a});
            }
        }
        std::sort(choices_.begin() + 1, choices_.end()); // the first is what is best without beam_width: it stays
        choices_.resize(std::min(choices_.size(), static_cast<size_t>(beam_)));
        go_on(first, block, step);
    }
    uint8_t *found(int64_t survivor, int64_t alternative, int64_t count) {
        return found_.data() + (survivor * kAlternatives + alternative) * count;
    }

    // The lanes from `first` on become those of the choices.
    void go_on(int64_t first, const LaneBlock &block, int64_t step) {
        const int64_t count = block.step + block.steps - step;
        const auto rearrange = [&](auto &all, int64_t size) {
            const std::vector before(all.begin() + first * size, all.begin() + (first + beam_) * size);
            for (auto to = all.begin() + first * size; const Choice &choice : choices_) {
                to = std::copy_n(before.begin() + choice.lane * size, size, to);
            }
        };
        rearrange(value_, job_.n_in);
        rearrange(codes_, static_cast<int64_t>(at(1, 0, 0)));
        rearrange(bits_, static_cast<int64_t>(at(1, 0, 0)));
        std::fill_n(spent_ + first, beam_, kUnused);
        for (int64_t r = first; const Choice &choice : choices_) {
            std::copy_n(found(choice.lane, choice.alternative, count), count,
                        codes_.data() + at(r, block.stream, step));
            choose_bits(r, block);
            spent_[r++] = choice.spent;
        }
    }

    // Completes a block that is decided, and adds what it costs once the later columns have made up for it.
    void spend(int64_t r, const LaneBlock &block) {
        choose_bits(r, block);
        if (!chooses_) {
            return; // nobody asks
        }
        const int64_t width = block.end - block.begin;
        product_.assign(static_cast<size_t>(width), 0.0F);
        values(r, block.stream, block.step, block.steps, [&](int64_t column, int value) {
            const int64_t i = job_.position[static_cast<size_t>(column)];
            const float error = value_[static_cast<size_t>(r * job_.n_in + i)] - static_cast<float>(unit_[r] * value);
            const float *own = job_.spec.feedback + i * job_.n_in + block.begin;
            for (int64_t j = 0; j < width; ++j) {
                product_[static_cast<size_t>(j)] += error * own[j];
            }
        });
        for (const float p : product_) {
            spent_[r] += static_cast<double>(p) * p;
        }
        spent_[r] = spent_[r] < kMost ? spent_[r] : kMost; // NaN, too
    }

    // The bits of the planes beside the codes of a block: the values nearest to the weights; ties to the least.
    void choose_bits(int64_t r, const LaneBlock &block) {
        if (job_.code.planes == 0) {
            return;
        }
        uint8_t *bits = bits_.data() + at(r, block.stream, block.step);
        std::fill_n(bits, block.steps, uint8_t{0});
        if (unit_[r] > 0) {
            const int emits = job_.code.emits[0];
            int v = 0;
            values(r, block.stream, block.step, block.steps, [&](int64_t column, int value) {
                const int step = v / emits;
                const int i = v++ % emits;
                if (i < job_.code.plane_values(block.step + step)) {
                    const int nearest = job_.levels.nearest_bits(weight_of(r, column) - value);
                    bits[step] |= static_cast<uint8_t>(nearest << i * job_.code.planes);
                }
            });
        }
    }

    // Lets the columns to come make up for the error of a block (GPTQ's update).
    void feed_back(const LaneBlock &block) {
        const int64_t n = job_.n_in;
        const int64_t width = block.end - block.begin;
        if (width == 0) {
            return;
        }
        for (int64_t r = 0; r < lanes_; ++r) {
            values(r, block.stream, block.step, block.steps, [&](int64_t column, int value) {
                const int64_t i = job_.position[static_cast<size_t>(column)];
                error_[static_cast<size_t>(r * width + i - block.begin)] =
                    value_[static_cast<size_t>(r * n + i)] - static_cast<float>(unit_[r] * value);
            });
        }
        kernels().encode.subtract_product(value_.data() + block.end, n, error_.data(), width,
                                          job_.spec.feedback + block.begin * n + block.end, n, lanes_, width,
                                          n - block.end);
    }

    const LaneJob &job_;
    const int64_t beam_;
    const bool chooses_; // after each block
    int64_t lanes_ = 0;
    double spent_[kSearchRows] = {};
    std::vector<float> value_; // [kSearchRows, n_in] in the order of decision
    std::vector<float> error_, product_;
    std::vector<uint8_t> codes_; // [kSearchRows, kStreams, steps]
    std::vector<uint8_t> bits_;  // the same of the planes
    double unit_[kSearchRows] = {};
    LaneSearch search_;
    std::vector<LaneStep> emitted_;
    std::vector<int64_t> columns_; // of the search; -1: padding
    std::vector<int16_t> weight_;
    AlignedVector<int16_t> target_;
    std::vector<Choice> choices_;
    std::vector<uint8_t> found_;                         // codes of all choices of a row
    int64_t firm_ = std::numeric_limits<int64_t>::max(); // first of the stream's values that are only in sight
    int16_t start_[kSearchRows] = {};
    double weight_unit_ = 1;
};

} // namespace seeddelta
