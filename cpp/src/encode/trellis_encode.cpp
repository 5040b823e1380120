#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <vector>

#include "encode/trellis_search.hpp"
#include "format/float16.hpp"
#include "format/parallel.hpp"
#include "format/rotation.hpp"
#include "format/trellis.hpp"
#include "seeddelta/encode.hpp"

namespace seeddelta {

// Rows that are encoded together where a tile is divided among threads: as many as the feedback takes at a time.
constexpr int64_t kFewRows = 4;

// Appends the path to the row's bit stream (docs/reference/format.md, "The trellis").
static void pack_path(const TrellisSpec &spec, const uint16_t *states, int64_t steps, uint16_t *tile, int lane) {
    const auto put = [&](int64_t bit, int count, uint32_t value) {
        for (int i = 0; i < count; ++i) {
            if ((value >> (count - 1 - i)) & 1U) {
                const int64_t at = bit + i;
                tile[at / 16 * kTileRows + lane] |= static_cast<uint16_t>(0x8000U >> (at % 16));
            }
        }
    };
    put(0, 16, states[0]);
    for (int64_t t = 1; t < steps; ++t) {
        put(16 + spec.step_bits * (t - 1), spec.step_bits, states[t] & ((1U << spec.step_bits) - 1));
    }
}

// Everything that the rows of one tensor share.
struct Job {
    const TrellisSpec &spec;
    const StateValues &values;
    const std::vector<float> &importance; // of the trellis' columns
    float scale_factor;
    int64_t n_in, steps;

    int64_t columns() const { return steps * spec.values_per_step; }
    float value(const uint16_t *states, int64_t column) const {
        return values.table[column % spec.values_per_step][states[column / spec.values_per_step]];
    }
};

// Row scale before the search, in weight units a value unit; 0 for a row of zeros.
static double initial_unit(const Job &job, const float *row) {
    double energy = 0;
    for (int64_t i = 0; i < job.n_in; ++i) {
        energy += static_cast<double>(row[i]) * row[i];
    }
    return std::sqrt(energy / static_cast<double>(job.n_in)) * job.scale_factor / kTrellisStd;
}

// Finds the states of steps [first, first + count), given the state before them (-1: any). weights are those of these
// columns.
static void search(const Job &job, const float *row, double unit, int64_t first, int64_t count, int64_t start_state,
                   const int16_t *weights, Scratch &s) {
    const int64_t v = job.spec.values_per_step;
    for (int64_t i = first * v; i < (first + count) * v; ++i) {
        const double x = i < job.n_in ? row[i] / unit : 0.0;
        s.target[static_cast<size_t>(i)] = search_target(x, weights[i - first * v]);
    }
    kernels().encode.viterbi({job.spec.state_bits,
                              job.spec.step_bits,
                              job.spec.values_per_step,
                              error_shift(job.spec),
                              {job.values.table[0].data(), job.values.table[1].data()},
                              s.target.data() + first * v,
                              weights,
                              count,
                              start_state,
                              -1,
                              {s.cost[0].data(), s.cost[1].data()},
                              s.best.data(),
                              s.back.data(),
                              s.states.data() + first});
}

// Weighted least squares of the row on its values.
static uint16_t refit_scale(const Job &job, const float *row, const uint16_t *states) {
    double cross = 0;
    double square = 0;
    for (int64_t i = 0; i < job.n_in; ++i) {
        const double v = job.value(states, i) / kTrellisStd;
        cross += job.importance[static_cast<size_t>(i)] * row[i] * v;
        square += job.importance[static_cast<size_t>(i)] * v * v;
    }
    return float_to_half(square > 0 && cross > 0 ? static_cast<float>(cross / square) : 0.0F);
}

// One tile block by block: search, then let the columns to come make up for the error (GPTQ's update).
static void encode_with_feedback(const Job &job, const Feedback &feedback, std::vector<float> &rows, int64_t n_rows,
                                 const double *unit, std::vector<std::unique_ptr<Scratch>> &row_scratch) {
    const int64_t n_in = job.n_in;
    const int64_t v = job.spec.values_per_step;
    std::vector<float> error(static_cast<size_t>(kTileRows * feedback.block));
    for (int64_t start = 0; start < n_in; start += feedback.block) {
        const int64_t end = std::min(start + feedback.block, n_in);
        const int64_t first = start / v;
        const int64_t last = end == n_in ? job.steps : end / v;
        const int64_t ahead = std::min(feedback.lookahead, job.steps - last);
        std::vector<int16_t> weights(static_cast<size_t>((last + ahead - first) * v));
        search_weights(job.spec, job.importance, first * v, (last + ahead) * v, weights.data());
        for (int64_t r = 0; r < n_rows; ++r) {
            Scratch &s = *row_scratch[static_cast<size_t>(r)];
            float *row = rows.data() + r * n_in;
            float *e = error.data() + r * feedback.block;
            if (unit[r] == 0) {
                std::fill_n(e, feedback.block, 0.0F);
                continue;
            }
            const int64_t before = first == 0 ? -1 : s.states[static_cast<size_t>(first - 1)];
            search(job, row, unit[r], first, last - first + ahead, before, weights.data(), s);
            for (int64_t i = start; i < end; ++i) {
                e[i - start] = row[i] - static_cast<float>(unit[r] * job.value(s.states.data(), i));
            }
        }
        if (end < n_in) {
            kernels().encode.subtract_product(rows.data() + end, n_in, error.data(), feedback.block,
                                              feedback.matrix + start * n_in + end, n_in, n_rows, end - start,
                                              n_in - end);
        }
    }
}

// Rows of a tile, lane `lane` and on.
static void encode_rows(const Job &job, const Feedback *feedback, const int16_t *weights_of_search,
                        std::vector<float> &rows, int64_t lane, std::vector<std::unique_ptr<Scratch>> &scratch,
                        uint16_t *tile, uint16_t *row_scale) {
    const TrellisSpec &spec = job.spec;
    const int64_t n_in = job.n_in;
    const auto n_rows = static_cast<int64_t>(rows.size()) / n_in;
    double unit[kTileRows];
    for (int64_t r = 0; r < n_rows; ++r) {
        if (spec.rotation_block > 1) {
            float *row = rows.data() + r * n_in;
            kernels().linear.rotate(row, row, n_in, spec.rotation_block, spec.seed);
        }
        unit[r] = initial_unit(job, rows.data() + r * n_in);
    }
    std::vector<float> moved;
    if (feedback != nullptr) {
        moved = rows;
        encode_with_feedback(job, *feedback, moved, n_rows, unit, scratch);
    }
    for (int64_t r = 0; r < n_rows; ++r) {
        row_scale[r] = 0;
        if (unit[r] == 0) {
            continue;
        }
        const float *row = rows.data() + r * n_in;
        Scratch &s = *scratch[static_cast<size_t>(feedback != nullptr ? r : 0)];
        if (feedback == nullptr) {
            search(job, row, unit[r], 0, job.steps, -1, weights_of_search, s);
        }
        row_scale[r] = refit_scale(job, row, s.states.data());
        pack_path(spec, s.states.data(), job.steps, tile, static_cast<int>(lane + r));
    }
}

void trellis_encode(const float *weights, int64_t n_out, int64_t n_in, const TrellisSpec &spec, const float *importance,
                    const Feedback *feedback, uint16_t *codes, uint16_t *row_scale, int threads) {
    if (!trellis_rate_supported(spec.step_bits, spec.values_per_step)) {
        throw std::invalid_argument("unsupported trellis rate");
    }
    seeddelta_ctx shape;
    shape.n_out = n_out;
    shape.n_in = n_in;
    shape.step_bits = static_cast<uint32_t>(spec.step_bits);
    shape.values_per_step = static_cast<uint32_t>(spec.values_per_step);
    const int64_t tile_words = shape.words() * kTileRows;
    const StateValues values(spec);
    const std::vector<float> h = rotated_importance(spec.rotation_block, n_in, importance);
    std::vector<int16_t> weights_of_search(static_cast<size_t>(shape.steps() * spec.values_per_step));
    search_weights(spec, h, 0, shape.steps() * spec.values_per_step, weights_of_search.data());
    const double rate = static_cast<double>(spec.step_bits) / spec.values_per_step;
    const Job job{spec, values,       h, spec.scale_factor > 0 ? spec.scale_factor : measured_scale_factor(rate),
                  n_in, shape.steps()};
    // A part of a tile is encoded at a time, smaller where there are fewer tiles than threads.
    const int64_t part = shape.n_tiles() < worker_count(kTileRows * shape.n_tiles(), threads) ? kFewRows : kTileRows;
    const int64_t parts = (n_out + part - 1) / part;
    const int workers = worker_count(parts, threads);
    const int64_t rows_at_once = feedback != nullptr ? part : 1;
    std::vector<std::vector<std::unique_ptr<Scratch>>> scratch(static_cast<size_t>(workers));
    std::memset(codes, 0, static_cast<size_t>(shape.n_tiles() * tile_words) * sizeof(uint16_t));

    parallel_for(parts, workers, [&](int64_t index, int worker) {
        auto &mine = scratch[static_cast<size_t>(worker)];
        while (static_cast<int64_t>(mine.size()) < rows_at_once) {
            mine.push_back(std::make_unique<Scratch>(spec, job.steps));
        }
        const int64_t row0 = index * part;
        uint16_t *tile = codes + row0 / kTileRows * tile_words;
        const int64_t n_rows = std::min(part, n_out - row0);
        std::vector<float> rows(weights + row0 * n_in, weights + (row0 + n_rows) * n_in);
        encode_rows(job, feedback, weights_of_search.data(), rows, row0 % kTileRows, mine, tile, row_scale + row0);
    });
}

} // namespace seeddelta
