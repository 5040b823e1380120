#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <vector>

#include "encode/aligned.hpp"
#include "encode/lane_blocks.hpp"
#include "encode/lane_levels.hpp"
#include "encode/lane_search.hpp"
#include "encode/trellis_search.hpp"
#include "format/float16.hpp"
#include "format/lanes.hpp"
#include "format/parallel.hpp"
#include "seeddelta/encode.hpp"

namespace seeddelta {
namespace {

constexpr int64_t kSight = 16; // steps that tell which codes suit the ends of a loop

// What the rows of one tensor share.
struct Job {
    const LanesSpec &spec;
    const LaneCode &code;
    int64_t n_in, steps, loop;
    LaneBlocks plan;
    std::vector<int32_t> position; // of a column in the order of decision
    std::vector<float> importance; // of the columns in their own order
    LaneLevels levels;
    LaneWeights weights;

    Job(const LanesSpec &s, int64_t columns, const float *h)
        : spec(s), code(*s.code), n_in(columns), steps(code.walk_steps(columns)), loop(lane_first_group(code, columns)),
          plan(lane_blocks(code, columns, s.groups)), position(static_cast<size_t>(columns)),
          importance(rotated_importance(s.rotation_block, columns, h)), levels(code), weights(code) {
        for (size_t i = 0; i < plan.order.size(); ++i) {
            position[static_cast<size_t>(plan.order[i])] = static_cast<int32_t>(i);
        }
    }
    int64_t longest_search() const {
        int64_t longest = 0;
        for (const LaneBlock &block : plan.blocks) {
            longest = std::max(longest, block.steps);
        }
        return longest + loop + spec.lookahead;
    }
};

// 32 rows of one worker.
class Rows {
public:
    explicit Rows(const Job &job)
        : job_(job), value_(static_cast<size_t>(kSearchRows * job.n_in)), error_(value_.size()),
          codes_(static_cast<size_t>(kSearchRows * kLaneWalks * job.steps)), bits_(codes_.size()),
          search_(job.levels, job.weights.error_shift, job.longest_search()),
          trace_(static_cast<size_t>(job.longest_search())) {}

    // rows [count, n_in], rotated
    void load(const float *rows, int64_t count) {
        count_ = count;
        std::fill(value_.begin(), value_.end(), 0.0F);
        for (int64_t r = 0; r < kSearchRows; ++r) {
            double energy = 0;
            for (int64_t i = 0; r < count && i < job_.n_in; ++i) {
                const float w = rows[r * job_.n_in + job_.plan.order[static_cast<size_t>(i)]];
                value_[static_cast<size_t>(r * job_.n_in + i)] = w;
                energy += static_cast<double>(w) * w;
            }
            const double factor = job_.spec.scale_factor > 0 ? job_.spec.scale_factor : kLaneScaleFactor;
            unit_[r] = std::sqrt(energy / static_cast<double>(job_.n_in)) * factor / job_.code.unit;
        }
    }

    void encode() {
        for (const LaneBlock &block : job_.plan.blocks) {
            int64_t step = block.step;
            if (step == 0) {
                decide_loop(block.walk);
                step = job_.loop;
            }
            if (step < block.step + block.steps) {
                decide(block.walk, step, block.step + block.steps - step);
            }
            if (job_.code.planes > 0) {
                choose_bits(block);
            }
            if (job_.spec.feedback != nullptr && block.end < job_.n_in) {
                feed_back(block);
            }
        }
    }

    const uint8_t *codes(int64_t row, int64_t walk) const {
        return codes_.data() + (row * kLaneWalks + walk) * job_.steps;
    }
    const uint8_t *bits(int64_t row, int64_t walk) const {
        return bits_.data() + (row * kLaneWalks + walk) * job_.steps;
    }
    bool is_zero(int64_t row) const { return unit_[row] == 0; }

    // Values of the row's codes at the steps [step, step + count) of a walk, to take(column, value).
    template <class Take>
    void values(int64_t row, int64_t walk, int64_t step, int64_t count, Take take) const {
        const uint8_t *c = codes(row, walk);
        const uint8_t *b = bits(row, walk);
        int64_t column = lane_values_before(job_.code, step) * kLaneWalks + walk;
        for (int64_t t = step; t < step + count; ++t) {
            const int c1 = c[t >= 1 ? t - 1 : job_.loop - 1];
            const int c2 = c[t >= 2 ? t - 2 : job_.loop - 2 + t];
            const auto phase = static_cast<size_t>(t % job_.code.steps);
            for (int i = 0; i < job_.code.emits[phase]; ++i, column += kLaneWalks) {
                if (column < job_.n_in) {
                    const int value = job_.levels.first_value[phase] + i;
                    take(column, lane_value(job_.code, value, i == 1, c[t], c1, c2) + job_.levels.added[b[t]]);
                }
            }
        }
    }

private:
    // Fixes the weights' unit for searches within the steps [step, step + count) of a walk.
    void weigh(int64_t walk, int64_t step, int64_t count) {
        std::vector<float> importance;
        for (int64_t value = lane_values_before(job_.code, step); value < lane_values_before(job_.code, step + count);
             ++value) {
            const int64_t column = value * kLaneWalks + walk;
            importance.push_back(column < job_.n_in ? job_.importance[static_cast<size_t>(column)] : 0.0F);
        }
        weight_unit_ = job_.weights.unit(importance);
    }

    // Searches the steps [step, step + count) of a walk from the ends in start_ (or from any), or backwards.
    void search(int64_t walk, int64_t step, int64_t count, bool from_start, bool backwards = false) {
        emitted_.clear();
        columns_.clear();
        for (int64_t i = 0; i < count; ++i) {
            const int64_t t = backwards ? step + count - 1 - i : step + i;
            const auto phase = static_cast<size_t>(t % job_.code.steps);
            emitted_.push_back(backwards ? job_.levels.backwards[phase] : job_.levels.forwards[phase]);
            for (int v = 0; v < job_.code.emits[phase]; ++v) {
                columns_.push_back((lane_values_before(job_.code, t) + v) * kLaneWalks + walk);
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
            weight_[i] = LaneWeights::weight(weight_unit_, job_.importance[static_cast<size_t>(columns_[i])]);
            for (int64_t r = 0; r < kSearchRows; ++r) {
                const double x = job_.levels.clamped(weight_of(r, columns_[i]));
                target[r] = static_cast<int16_t>(std::nearbyint(x * weight_[i]));
            }
        }
    }

    // What is left to encode of a weight, in units of the tables; 0 where what was fed back overflowed.
    double weight_of(int64_t row, int64_t column) const {
        const float value = value_[static_cast<size_t>(row * job_.n_in + job_.position[static_cast<size_t>(column)])];
        const double x = unit_[row] > 0 ? value / unit_[row] : 0.0;
        return x == x ? x : 0.0;
    }

    // What each pair of codes costs that ends the loop of a walk and begins it, by all it touches: the end of the loop,
    // its begin, and what follows.
    void price_ends(int64_t walk, int64_t after) {
        search(walk, job_.loop - kSight, kSight, false);
        search_.add_prices(false);
        search(walk, 0, kSight, false, true);
        search_.add_prices(true);
        if (after > 0) {
            search(walk, job_.loop, after, false, true);
            search_.add_prices(true);
        }
    }

    // The same where the loop is too short for its end and its begin to be apart: every pair is tried.
    void price_short_loop(int64_t walk) {
        for (int end = 0; end < kLaneEnds; ++end) {
            std::fill_n(start_, kSearchRows, static_cast<int16_t>(end));
            search(walk, 0, job_.loop, true);
            for (int64_t r = 0; r < kSearchRows; ++r) {
                search_.set_price(end, r, search_.cost(end, r) >> 4);
            }
        }
    }

    // The first steps of a walk, whose last two codes are those before its first: the pair is chosen, then the loop is
    // searched between the two.
    void decide_loop(int64_t walk) {
        const int64_t after = std::min(job_.steps - job_.loop, kSight);
        weigh(walk, 0, job_.loop + after);
        search_.clear_prices();
        if (job_.loop < kSight) {
            price_short_loop(walk);
        } else {
            price_ends(walk, after);
        }
        for (int64_t r = 0; r < kSearchRows; ++r) {
            start_[r] = search_.take_cheapest(r);
        }
        search(walk, 0, job_.loop, true);
        for (int64_t r = 0; r < kSearchRows; ++r) {
            search_.trace(job_.loop, start_[r], r, codes_.data() + (r * kLaneWalks + walk) * job_.steps);
        }
    }

    // Steps [step, step + count) of a walk, given those before, with those that follow in sight.
    void decide(int64_t walk, int64_t step, int64_t count) {
        for (int64_t r = 0; r < kSearchRows; ++r) {
            start_[r] = static_cast<int16_t>(codes(r, walk)[step - 2] * 16 + codes(r, walk)[step - 1]);
        }
        const int64_t searched = std::min(count + job_.spec.lookahead, job_.steps - step);
        weigh(walk, step, searched);
        search(walk, step, searched, true);
        for (int64_t r = 0; r < kSearchRows; ++r) {
            search_.trace(searched, search_.best_end(r), r, trace_.data());
            std::copy_n(trace_.data(), count, codes_.data() + (r * kLaneWalks + walk) * job_.steps + step);
        }
    }

    // The bits of the planes beside the codes of a block: the values nearest to the weights; ties to the least.
    void choose_bits(const LaneBlock &block) {
        for (int64_t r = 0; r < kSearchRows; ++r) {
            uint8_t *bits = bits_.data() + (r * kLaneWalks + block.walk) * job_.steps + block.step;
            std::fill_n(bits, block.steps, uint8_t{0});
            if (unit_[r] == 0) {
                continue;
            }
            values(r, block.walk, block.step, block.steps, [&](int64_t column, int value) { // a step has one value
                *bits++ = job_.levels.nearest_bits(weight_of(r, column) - value);
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
        for (int64_t r = 0; r < count_; ++r) {
            values(r, block.walk, block.step, block.steps, [&](int64_t column, int value) {
                const int64_t at = job_.position[static_cast<size_t>(column)];
                error_[static_cast<size_t>(r * width + at - block.begin)] =
                    value_[static_cast<size_t>(r * n + at)] - static_cast<float>(unit_[r] * value);
            });
        }
        kernels().encode.subtract_product(value_.data() + block.end, n, error_.data(), width,
                                          job_.spec.feedback + block.begin * n + block.end, n, count_, width,
                                          n - block.end);
    }

    const Job &job_;
    int64_t count_ = 0;
    std::vector<float> value_; // [kSearchRows, n_in] in the order of decision
    std::vector<float> error_;
    std::vector<uint8_t> codes_; // [kSearchRows, kLaneWalks, steps]
    std::vector<uint8_t> bits_;  // the same of the planes
    double unit_[kSearchRows] = {};
    LaneSearch search_;
    std::vector<LaneStep> emitted_;
    std::vector<int64_t> columns_; // of the search; -1: padding
    std::vector<int16_t> weight_;
    AlignedVector<int16_t> target_;
    std::vector<uint8_t> trace_;
    int16_t start_[kSearchRows] = {};
    double weight_unit_ = 1;
};

} // namespace

// Weighted least squares of the row on its values.
static uint16_t refit_scale(const Job &job, const Rows &rows, int64_t r, const float *row) {
    double cross = 0;
    double square = 0;
    for (int64_t walk = 0; walk < kLaneWalks; ++walk) {
        rows.values(r, walk, 0, job.steps, [&](int64_t column, int value) {
            const double h = job.importance[static_cast<size_t>(column)];
            const double v = static_cast<double>(value) / job.code.unit;
            cross += h * row[column] * v;
            square += h * v * v;
        });
    }
    return float_to_half(square > 0 && cross > 0 ? static_cast<float>(cross / square) : 0.0F);
}

void lanes_encode(const float *weights, int64_t n_out, int64_t n_in, const LanesSpec &spec, const float *importance,
                  uint8_t *codes, uint16_t *row_scale, int threads) {
    const Job job(spec, n_in, importance);
    const int64_t lines = spec.code->lines(n_in);
    const int64_t n_tiles = (n_out + kTileRows - 1) / kTileRows;
    std::memset(codes, 0, static_cast<size_t>(n_tiles * lines * kLaneBytes));
    const int64_t jobs = (n_out + kSearchRows - 1) / kSearchRows;
    const int workers = worker_count(jobs, threads);
    std::vector<std::unique_ptr<Rows>> scratch(static_cast<size_t>(workers));

    parallel_for(jobs, workers, [&](int64_t index, int worker) {
        auto &mine = scratch[static_cast<size_t>(worker)];
        if (mine == nullptr) {
            mine = std::make_unique<Rows>(job);
        }
        const int64_t row0 = index * kSearchRows;
        const int64_t count = std::min(kSearchRows, n_out - row0);
        std::vector<float> rows(weights + row0 * n_in, weights + (row0 + count) * n_in);
        if (spec.rotation_block > 1) {
            for (int64_t r = 0; r < count; ++r) {
                kernels().linear.rotate(rows.data() + r * n_in, n_in, spec.rotation_block, spec.seed);
            }
        }
        mine->load(rows.data(), count);
        mine->encode();
        for (int64_t r = 0; r < count; ++r) {
            const bool zero = mine->is_zero(r);
            row_scale[row0 + r] = zero ? uint16_t{0} : refit_scale(job, *mine, r, rows.data() + r * n_in);
            uint8_t *tile = codes + (row0 + r) / kTileRows * lines * kLaneBytes + (row0 + r) % kTileRows * kLaneWalks;
            for (int64_t walk = 0; !zero && walk < kLaneWalks; ++walk) {
                const uint8_t *c = mine->codes(r, walk);
                const uint8_t *b = mine->bits(r, walk);
                for (int64_t step = 0; step < job.steps; ++step) {
                    tile[job.code.code_line(step) * kLaneBytes + walk] |=
                        static_cast<uint8_t>(c[step] << (step % 2 * 4));
                    for (int p = 0; p < job.code.planes; ++p) {
                        tile[job.code.plane_line(step, p) * kLaneBytes + walk] |=
                            static_cast<uint8_t>((b[step] >> p & 1) << (step % kLanePlaneSteps));
                    }
                }
            }
        }
    });
}

} // namespace seeddelta
