#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <vector>

#include "base/rotation.hpp"
#include "base/trellis.hpp"
#include "encode/viterbi.hpp"
#include "seeddelta/encode.hpp"
#include "util/float16.hpp"
#include "util/parallel.hpp"

namespace seeddelta {

bool trellis_rate_supported(int step_bits, int values_per_step) {
    return (values_per_step == 1 && step_bits >= 1 && step_bits <= 6) ||
           (values_per_step == 2 && (step_bits == 3 || step_bits == 5));
}

// Row scale over root mean square that gave the least error on Gaussian rows, by bits a weight.
static float measured_scale_factor(double rate) {
    static constexpr double rates[] = {1, 1.5, 2, 2.5, 3, 4, 5, 6};
    static constexpr double factors[] = {0.97, 1.0, 1.06, 1.09, 1.11, 1.16, 1.27, 1.31};
    for (int i = 0; i < 8; ++i) {
        if (rate <= rates[i]) {
            return static_cast<float>(factors[i]);
        }
    }
    return static_cast<float>(factors[7]);
}

// Values of all L-bit states, one table a multiplier.
struct StateValues {
    std::vector<int16_t> table[2];
    explicit StateValues(const TrellisSpec &spec) {
        for (int v = 0; v < spec.values_per_step; ++v) {
            table[v].resize(size_t{1} << spec.state_bits);
            for (size_t s = 0; s < table[v].size(); ++s) {
                table[v][s] = static_cast<int16_t>(trellis_value(static_cast<uint16_t>(s), spec.multiplier[v]));
            }
        }
    }
};

// Buffers of one worker.
struct Scratch {
    std::vector<float> row;
    std::vector<int16_t> target;
    std::vector<uint16_t> cost[2], best, states;
    std::vector<uint8_t> back;
    Scratch(const TrellisSpec &spec, int64_t n_in, int64_t steps) {
        const size_t n_states = size_t{1} << spec.state_bits;
        const size_t n_groups = n_states >> spec.step_bits;
        const size_t columns = static_cast<size_t>(steps * spec.values_per_step);
        row.resize(std::max(columns, static_cast<size_t>(n_in)));
        target.resize(columns);
        cost[0].resize(n_states);
        cost[1].resize(n_states);
        best.resize(n_groups + 32); // whole registers are read past the end
        states.resize(static_cast<size_t>(steps));
        back.resize(static_cast<size_t>(steps) * n_groups);
    }
};

// Weights of the Viterbi search: sqrt of the rotated columns' importance, in fixed point; 1 for padding.
static std::vector<int16_t> search_weights(const TrellisSpec &spec, int64_t n_in, int64_t columns, const float *importance,
                                           std::vector<float> &rotated_importance) {
    const double rate = static_cast<double>(spec.step_bits) / spec.values_per_step;
    const double distortion = 1.1 * kTrellisStd * std::exp2(-rate);
    const double f0 = kTypicalError * (1 << kErrorShift) / distortion;
    rotated_importance.assign(static_cast<size_t>(n_in), 1.0F);
    if (importance != nullptr) {
        const int64_t block = spec.rotation_block > 1 ? spec.rotation_block : 1;
        double total = 0;
        for (int64_t start = 0; start < n_in; start += block) {
            double sum = 0;
            for (int64_t i = start; i < start + block; ++i) {
                sum += importance[i];
            }
            total += sum;
            std::fill_n(rotated_importance.begin() + start, block, static_cast<float>(sum / static_cast<double>(block)));
        }
        for (float &h : rotated_importance) {
            h = static_cast<float>(h * static_cast<double>(n_in) / total);
        }
    }
    std::vector<int16_t> weights(static_cast<size_t>(columns), 1);
    for (int64_t i = 0; i < n_in; ++i) {
        const double f = std::nearbyint(f0 * std::sqrt(static_cast<double>(rotated_importance[static_cast<size_t>(i)])));
        weights[static_cast<size_t>(i)] = static_cast<int16_t>(std::clamp(f, 8.0, static_cast<double>(kMaxWeight)));
    }
    return weights;
}

// Appends the path to the row's bit stream (docs/format.md, "The trellis").
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

void trellis_encode(const float *weights, int64_t n_out, int64_t n_in, const TrellisSpec &spec, const float *importance,
                    uint16_t *codes, uint16_t *row_scale, int threads) {
    if (!trellis_rate_supported(spec.step_bits, spec.values_per_step)) {
        throw std::invalid_argument("unsupported trellis rate");
    }
    seeddelta_ctx shape;
    shape.n_out = n_out;
    shape.n_in = n_in;
    shape.step_bits = static_cast<uint32_t>(spec.step_bits);
    shape.values_per_step = static_cast<uint32_t>(spec.values_per_step);
    const int64_t steps = shape.steps();
    const int64_t columns = steps * spec.values_per_step;
    const int64_t tile_words = shape.words() * kTileRows;
    const StateValues values(spec);
    std::vector<float> h;
    const std::vector<int16_t> search = search_weights(spec, n_in, columns, importance, h);
    const float factor = spec.scale_factor > 0
                             ? spec.scale_factor
                             : measured_scale_factor(static_cast<double>(spec.step_bits) / spec.values_per_step);
    const int max_value = kTrellisTable1[15] + kTrellisTable2[15];
    const int workers = worker_count(shape.n_tiles(), threads);
    std::vector<std::unique_ptr<Scratch>> scratch(static_cast<size_t>(workers));

    parallel_for(shape.n_tiles(), workers, [&](int64_t tile_index, int worker) {
        auto &mine = scratch[static_cast<size_t>(worker)];
        if (!mine) {
            mine = std::make_unique<Scratch>(spec, n_in, steps);
        }
        Scratch &s = *mine;
        uint16_t *tile = codes + tile_index * tile_words;
        std::memset(tile, 0, static_cast<size_t>(tile_words) * sizeof(uint16_t));
        for (int64_t r = tile_index * kTileRows; r < std::min((tile_index + 1) * kTileRows, n_out); ++r) {
            std::copy_n(weights + r * n_in, n_in, s.row.begin());
            if (spec.rotation_block > 1) {
                kernels().rotate(s.row.data(), n_in, spec.rotation_block, spec.seed);
            }
            double energy = 0;
            for (int64_t i = 0; i < n_in; ++i) {
                energy += static_cast<double>(s.row[static_cast<size_t>(i)]) * s.row[static_cast<size_t>(i)];
            }
            row_scale[r] = 0;
            if (energy == 0) {
                continue;
            }
            const double unit = std::sqrt(energy / static_cast<double>(n_in)) * factor / kTrellisStd;
            for (int64_t i = 0; i < columns; ++i) {
                const double f = search[static_cast<size_t>(i)];
                const double x = i < n_in ? s.row[static_cast<size_t>(i)] / unit : 0.0;
                // Beyond the largest value the nearest one is the target, or the search would see no slope there.
                s.target[static_cast<size_t>(i)] =
                    static_cast<int16_t>(std::nearbyint(std::clamp(x, -1.0 * max_value, 1.0 * max_value) * f));
            }
            kernels().viterbi({spec.state_bits,
                               spec.step_bits,
                               spec.values_per_step,
                               {values.table[0].data(), values.table[1].data()},
                               s.target.data(),
                               search.data(),
                               steps,
                               -1,
                               {s.cost[0].data(), s.cost[1].data()},
                               s.best.data(),
                               s.back.data(),
                               s.states.data()});
            double cross = 0;
            double square = 0;
            for (int64_t i = 0; i < n_in; ++i) {
                const auto state = s.states[static_cast<size_t>(i / spec.values_per_step)];
                const double v = values.table[i % spec.values_per_step][state] / kTrellisStd;
                cross += h[static_cast<size_t>(i)] * s.row[static_cast<size_t>(i)] * v;
                square += h[static_cast<size_t>(i)] * v * v;
            }
            row_scale[r] = float_to_half(square > 0 && cross > 0 ? static_cast<float>(cross / square) : 0.0F);
            pack_path(spec, s.states.data(), steps, tile, static_cast<int>(r % kTileRows));
        }
    });
}

} // namespace seeddelta
