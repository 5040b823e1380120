#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "encode/lane_rows.hpp"
#include "format/float16.hpp"
#include "format/parallel.hpp"
#include "seeddelta/encode.hpp"

namespace seeddelta {

// Weighted least squares of a row on the values of a lane.
struct Fit {
    double cross = 0;
    double square = 0;

    Fit(const LaneJob &job, const LaneRows &rows, int64_t lane, const float *row) {
        for (int64_t stream = 0; stream < kStreams; ++stream) {
            rows.values(lane, stream, 0, job.steps, [&](int64_t column, int value) {
                const double h = job.importance[static_cast<size_t>(column)];
                const double v = static_cast<double>(value) / job.code.deviation;
                cross += h * row[column] * v;
                square += h * v * v;
            });
        }
    }
    // How much of the row's square it explains.
    double gain() const { return square > 0 && cross > 0 ? cross * cross / square : 0; }
    uint16_t scale() const {
        return float_to_half(square > 0 && cross > 0 ? static_cast<float>(cross / square) : 0.0F);
    }
};

// The lane that has the row's codes, and its fit.
static std::pair<int64_t, Fit> chosen(const LaneJob &job, const LaneRows &rows, int64_t r, const float *row) {
    if (job.spec.feedback != nullptr) {
        return {rows.lane_of(r), Fit(job, rows, rows.lane_of(r), row)};
    }
    const int64_t first = r * job.spec.beam_width;
    std::pair<int64_t, Fit> best{first, Fit(job, rows, first, row)};
    for (int64_t lane = first + 1; lane < first + job.spec.beam_width; ++lane) {
        const Fit fit(job, rows, lane, row);
        if (fit.gain() > best.second.gain()) {
            best = {lane, fit};
        }
    }
    return best;
}

void lanes_encode(const float *weights, int64_t n_out, int64_t n_in, const LanesSpec &spec, const float *importance,
                  uint8_t *codes, uint16_t *row_scale, int threads) {
    const LaneJob job(spec, n_in, importance);
    const int64_t lines = spec.code->lines(n_in);
    const int64_t n_tiles = (n_out + kTileRows - 1) / kTileRows;
    std::memset(codes, 0, static_cast<size_t>(n_tiles * lines * kLaneBytes));
    const int64_t together = kSearchRows / spec.beam_width;
    const int64_t jobs = (n_out + together - 1) / together;
    const int workers = worker_count(jobs, threads);
    std::vector<std::unique_ptr<LaneRows>> scratch(static_cast<size_t>(workers));

    parallel_for(jobs, workers, [&](int64_t index, int worker) {
        auto &mine = scratch[static_cast<size_t>(worker)];
        if (mine == nullptr) {
            mine = std::make_unique<LaneRows>(job);
        }
        const int64_t row0 = index * together;
        const int64_t count = std::min(together, n_out - row0);
        std::vector<float> rows(weights + row0 * n_in, weights + (row0 + count) * n_in);
        if (spec.rotation_block > 1) {
            for (int64_t r = 0; r < count; ++r) {
                float *row = rows.data() + r * n_in;
                kernels().linear.rotate(row, row, n_in, spec.rotation_block, spec.seed);
            }
        }
        mine->load(rows.data(), count);
        mine->encode();
        for (int64_t r = 0; r < count; ++r) {
            const auto [lane, fit] = chosen(job, *mine, r, rows.data() + r * n_in);
            const bool zero = mine->is_zero(lane);
            row_scale[row0 + r] = zero ? uint16_t{0} : fit.scale();
            uint8_t *tile = codes + (row0 + r) / kTileRows * lines * kLaneBytes + (row0 + r) % kTileRows * kStreams;
            for (int64_t stream = 0; !zero && stream < kStreams; ++stream) {
                const uint8_t *c = mine->codes(lane, stream);
                const uint8_t *b = mine->bits(lane, stream);
                for (int64_t step = 0; step < job.steps; ++step) {
                    tile[job.code.code_line(step) * kLaneBytes + stream] |=
                        static_cast<uint8_t>(c[step] << (step % 2 * 4));
                    for (int i = 0; i < job.code.plane_values(step); ++i) {
                        for (int p = 0; p < job.code.planes; ++p) {
                            tile[job.code.plane_line(step, p) * kLaneBytes + stream] |= static_cast<uint8_t>(
                                (job.code.bits_of(b[step], i) >> p & 1) << job.code.plane_bit(step, i));
                        }
                    }
                }
            }
        }
    });
}

} // namespace seeddelta
