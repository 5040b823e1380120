// Column layout: unit after unit, each as 16 closed (tail-biting) walks along the outputs.
#include <cstring>
#include <memory>
#include <stdexcept>

#include "encode/trellis_search.hpp"
#include "encode/units.hpp"
#include "format/column_trellis.hpp"
#include "format/parallel.hpp"

namespace seeddelta {

namespace {

// Everything that the units of one tensor share, and the unit being encoded.
struct Job {
    const TrellisSpec &spec;
    const StateValues &values;
    int64_t n_out, steps, window, rounds;
    std::vector<int16_t> weights; // of the search: alike, 1 for padding
    std::vector<uint16_t> states; // [16, steps] of the unit

    int64_t per_lane() const { return steps * spec.values_per_step; }
    float value(int64_t position) const {
        const int64_t column = position / kTileRows;
        const int64_t state = position % kTileRows * steps + column / spec.values_per_step;
        return values.table[column % spec.values_per_step][states[static_cast<size_t>(state)]];
    }
};

// The search over the steps whose targets and weights are given.
void search(const Job &job, const int16_t *target, const int16_t *weight, int64_t steps, int64_t start_state,
            int64_t end_group, Scratch &s, uint16_t *states) {
    kernels().encode.viterbi({job.spec.state_bits,
                              job.spec.step_bits,
                              job.spec.values_per_step,
                              error_shift(job.spec),
                              {job.values.table[0].data(), job.values.table[1].data()},
                              target,
                              weight,
                              steps,
                              start_state,
                              end_group,
                              {s.cost[0].data(), s.cost[1].data()},
                              s.best.data(),
                              s.back.data(),
                              states});
}

// Finds the closed walk of one lane: first around step 0, to choose the state there, then the whole with this state
// before the first step and, in the bits that the first step keeps of it, at the end (QTIP, Tseng et al. 2024,
// algorithm 4). Then the same with the state that was found half way round, and so on: no round makes it worse.
void search_lane(Job &job, const float *unit, double scale, int64_t lane, Scratch &s) {
    const int64_t v = job.spec.values_per_step;
    const int64_t steps = job.steps;
    // twice, so that a walk may begin anywhere, and the search around the seam go round when the walk is short
    std::vector<int16_t> target(static_cast<size_t>(2 * steps * v));
    std::vector<int16_t> weight(target.size());
    for (int64_t i = 0; i < 2 * steps * v; ++i) {
        const int64_t position = i % (steps * v) * kTileRows + lane;
        const double x = position < job.n_out ? unit[position] / scale : 0.0;
        weight[static_cast<size_t>(i)] = job.weights[static_cast<size_t>(position)];
        target[static_cast<size_t>(i)] = search_target(x, job.weights[static_cast<size_t>(position)]);
    }
    std::vector<uint16_t> walk(static_cast<size_t>(2 * steps));
    const auto run = [&](int64_t first, int64_t count, int64_t state, int64_t group) {
        search(job, target.data() + first * v, weight.data() + first * v, count, state, group, s, walk.data());
    };
    const int64_t half = std::min(job.window, steps);
    run(steps - half, 2 * half, -1, -1);
    int64_t state = walk[static_cast<size_t>(half - 1)];
    uint16_t *states = job.states.data() + lane * steps;
    for (int64_t round = 0; round < job.rounds; ++round) {
        const int64_t first = round % 2 * (steps / 2);
        if (round > 0) {
            state = states[(first + steps - 1) % steps];
        }
        run(first, steps, state, state & ((int64_t{1} << (job.spec.state_bits - job.spec.step_bits)) - 1));
        for (int64_t t = 0; t < steps; ++t) {
            states[(first + t) % steps] = walk[static_cast<size_t>(t)];
        }
    }
}

// The new bits of each step, and the beginning again up to the end of the last word.
void pack_lane(const Job &job, int64_t lane, int64_t words, uint16_t *unit) {
    const int64_t k = job.spec.step_bits;
    const int64_t bits = k * job.steps;
    const uint16_t *states = job.states.data() + lane * job.steps;
    for (int64_t at = 0; at < 16 * words; ++at) {
        // bit b of the stream is a new bit of the step whose state ends at or after it
        const int64_t b = (at + bits - 16 + k) % bits;
        if (states[b / k] >> (k - 1 - b % k) & 1) {
            unit[at / 16 * kTileRows + lane] |= static_cast<uint16_t>(0x8000U >> (at % 16));
        }
    }
}

ColumnWeight shape_of(const TrellisSpec &spec, int64_t n_out) {
    if (!trellis_rate_supported(spec.step_bits, spec.values_per_step)) {
        throw std::invalid_argument("unsupported trellis rate");
    }
    ColumnWeight shape;
    shape.kind = ColumnKind::trellis;
    shape.n_out = n_out;
    shape.step_bits = static_cast<uint32_t>(spec.step_bits);
    shape.values_per_step = static_cast<uint32_t>(spec.values_per_step);
    return shape;
}

// The trellis, for units.hpp.
class TrellisUnits {
public:
    TrellisUnits(Job job, int64_t words, uint16_t *codes, int workers)
        : job_(std::move(job)), words_(words), codes_(codes) {
        for (int i = 0; i < workers; ++i) {
            scratch_.push_back(
                std::make_unique<Scratch>(job_.spec, std::max(job_.steps, 2 * std::min(job_.window, job_.steps))));
        }
    }
    double deviation() const { return kTrellisStd; }
    double scale_factor() const {
        const double rate = static_cast<double>(job_.spec.step_bits) / job_.spec.values_per_step;
        return job_.spec.scale_factor > 0 ? job_.spec.scale_factor : measured_scale_factor(rate);
    }
    void search(int worker, int workers, const float *unit, double scale) {
        for (int64_t lane = worker; lane < kTileRows; lane += workers) {
            search_lane(job_, unit, scale, lane, *scratch_[static_cast<size_t>(worker)]);
        }
    }
    float value(int64_t output) const { return job_.value(output); }
    void store(int64_t unit) const {
        for (int64_t lane = 0; lane < kTileRows; ++lane) {
            pack_lane(job_, lane, words_, codes_ + unit * words_ * kTileRows);
        }
    }

private:
    Job job_;
    int64_t words_;
    uint16_t *codes_;
    std::vector<std::unique_ptr<Scratch>> scratch_;
};

} // namespace

void columns_encode(const float *units, int64_t n_out, int64_t n_in, const TrellisSpec &spec, const float *feedback,
                    int64_t window, int64_t rounds, uint16_t *codes, uint16_t *unit_scale, int threads) {
    const ColumnWeight shape = shape_of(spec, n_out);
    const StateValues values(spec);
    Job job{spec, values, n_out, shape.steps(), std::max<int64_t>(window, 1), std::max<int64_t>(rounds, 1), {}, {}};
    const int64_t words = column_words(spec.step_bits, job.steps);
    job.weights.resize(static_cast<size_t>(shape.positions()));
    search_weights(spec, std::vector<float>(static_cast<size_t>(n_out), 1.0F), 0, shape.positions(),
                   job.weights.data());
    job.states.resize(static_cast<size_t>(kTileRows * job.steps));
    std::memset(codes, 0, static_cast<size_t>(n_in * words * kTileRows) * sizeof(uint16_t));
    const int workers = worker_count(kTileRows, threads);
    TrellisUnits trellis(std::move(job), words, codes, workers);
    encode_units(units, n_out, n_in, feedback, trellis, unit_scale, workers);
}

} // namespace seeddelta
