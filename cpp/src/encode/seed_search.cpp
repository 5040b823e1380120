// Seeds of prng_block chosen a row or a block: shape-gain coding with a codebook that nobody stores.
//
// Candidate c of row o has the values that a single seed gives to row o + c, so the rows of a slab share their
// candidates: their projections on all of them are one matrix product in float32. A candidate removes at most <w, v>^2
// / <v, v> (all weighted), whatever its gain: what its projection says, plus the largest rounding error of it. Only
// when that is more than the best so far is the candidate scored exactly, in double precision and with the gain as it
// is stored.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <vector>

#include "format/parallel.hpp"
#include "format/procedural.hpp"
#include "seeddelta/encode.hpp"
#include "simd/kernel_table.hpp"

namespace seeddelta {

namespace {

constexpr int64_t kSlab = 256; // rows that share candidates
constexpr int64_t kScan = 16;  // projections that are compared at a time

struct Best {
    double removed = -1.0; // of the squared error
    float threshold = -1.0F;
    uint16_t choice = 0;
    int8_t gain = 0;
};

// One unit of a slab: all columns, or those of one block.
struct Unit {
    const SeedSearch &spec;
    int64_t row_begin, rows;
    int64_t begin, columns; // in the matrix
    int64_t block;          // -1: the whole row

    void values(int64_t stream, int8_t *out) const {
        if (block < 0) {
            prng_block_row(spec.seed, static_cast<uint64_t>(stream), columns, spec.block, out);
            return;
        }
        const uint64_t key = prng_block_key(spec.seed, static_cast<uint64_t>(stream), static_cast<uint64_t>(block));
        for (int64_t word = 0; word * 8 < columns; ++word) {
            const uint64_t bytes = splitmix64_at(key, static_cast<uint64_t>(word));
            for (int64_t i = 0; i < std::min<int64_t>(8, columns - word * 8); ++i) {
                out[word * 8 + i] = static_cast<int8_t>(prng_block_value(static_cast<uint8_t>(bytes >> (8 * i))));
            }
        }
    }
};

// What a candidate removes from the error of one row; sets the gain of a block.
double score(const float *w, const double *h, const int8_t *v, int64_t columns, const float *step, int8_t &gain) {
    double cross = 0.0;
    double square = 0.0;
    for (int64_t i = 0; i < columns; ++i) {
        cross += h[i] * w[i] * v[i];
        square += h[i] * v[i] * v[i];
    }
    if (step == nullptr) {
        return cross * cross / square;
    }
    const double s = *step;
    gain = s == 0.0 ? int8_t{0} : static_cast<int8_t>(std::clamp(std::nearbyint(cross / (s * square)), -127.0, 127.0));
    return s * gain * (2.0 * cross - s * gain * square);
}

class Search {
public:
    Search(const Unit &unit, const float *weights, int64_t n_in, const float *importance, const float *step)
        : unit_(unit), weights_(weights), n_in_(n_in), step_(step), chunk_(unit.columns <= 64 ? 128 : 32),
          h_(static_cast<size_t>(unit.columns), 1.0), root_(h_.size(), 1.0F),
          a_(static_cast<size_t>(unit.rows) * h_.size()), slack_(static_cast<size_t>(unit.rows)),
          u_(h_.size() * static_cast<size_t>(chunk_)), p_(static_cast<size_t>(unit.rows * chunk_)), v_(u_.size()),
          best(slack_.size()) {
        for (int64_t i = 0; i < unit.columns && importance != nullptr; ++i) {
            h_[i] = importance[unit.begin + i];
            root_[i] = static_cast<float>(std::sqrt(h_[i]));
        }
        // float32: the products' sum, and the factors that were rounded before
        const double relative = static_cast<double>(unit.columns + 8) * 0x1p-23;
        for (int64_t r = 0; r < unit.rows; ++r) {
            double square = 0.0;
            for (int64_t i = 0; i < unit.columns; ++i) {
                const float a = root_[i] * row(r)[i];
                a_[r * unit.columns + i] = a;
                square += static_cast<double>(a) * a;
            }
            slack_[r] = relative * std::sqrt(square);
        }
    }

    int64_t run() {
        const int64_t streams = unit_.rows - 1 + unit_.spec.choices;
        int64_t scored = 0;
        for (int64_t begin = 0; begin < streams; begin += chunk_) {
            const int64_t count = std::min(chunk_, streams - begin);
            make_candidates(begin, count);
            if (unit_.spec.prune) {
                std::fill(p_.begin(), p_.end(), 0.0F);
                kernels().encode.subtract_product(p_.data(), chunk_, a_.data(), unit_.columns, u_.data(), chunk_,
                                                  unit_.rows, unit_.columns, chunk_);
            }
            for (int64_t r = 0; r < unit_.rows; ++r) {
                // stream begin + i of the slab is candidate begin + i - r of row r
                const int64_t first = std::max<int64_t>(0, r - begin);
                const int64_t last = std::min(count, unit_.spec.choices + r - begin);
                scored += scan(r, begin, first, last);
            }
        }
        return scored;
    }

private:
    const float *row(int64_t r) const { return weights_ + (unit_.row_begin + r) * n_in_ + unit_.begin; }

    void make_candidates(int64_t begin, int64_t count) {
        const int64_t n = unit_.columns;
        for (int64_t c = 0; c < count; ++c) {
            int8_t *v = v_.data() + c * n;
            unit_.values(unit_.row_begin + begin + c, v);
            double square = 0.0;
            for (int64_t i = 0; i < n; ++i) {
                square += h_[i] * v[i] * v[i];
            }
            const auto inverse = static_cast<float>(1.0 / std::sqrt(square));
            for (int64_t i = 0; i < n; ++i) {
                u_[i * chunk_ + c] = root_[i] * static_cast<float>(v[i]) * inverse;
            }
        }
    }

    int64_t scan(int64_t r, int64_t begin, int64_t first, int64_t last) {
        const float *p = p_.data() + r * chunk_;
        Best &b = best[r];
        int64_t scored = 0;
        for (int64_t at = first; at < last; at += kScan) {
            const int64_t end = std::min(at + kScan, last);
            if (unit_.spec.prune && !any_above(p + at, end - at, b.threshold)) {
                continue;
            }
            for (int64_t i = at; i < end; ++i) {
                if (unit_.spec.prune && std::fabs(p[i]) <= b.threshold) {
                    continue;
                }
                ++scored;
                int8_t gain = 0;
                const float *step = step_ == nullptr ? nullptr : step_ + unit_.row_begin + r;
                const double removed =
                    score(row(r), h_.data(), v_.data() + i * unit_.columns, unit_.columns, step, gain);
                if (removed > b.removed) {
                    // a projection up to here removes no more than this: rounded down by more than double rounds
                    const double limit = std::sqrt(removed) * (1.0 - 1e-6) - slack_[r];
                    b = {removed, static_cast<float>(limit), static_cast<uint16_t>(begin + i - r), gain};
                }
            }
        }
        return scored;
    }

    static bool any_above(const float *p, int64_t n, float threshold) {
        int any = 0;
        for (int64_t i = 0; i < n; ++i) {
            any |= static_cast<int>(std::fabs(p[i]) > threshold);
        }
        return any != 0;
    }

    const Unit unit_;
    const float *weights_;
    const int64_t n_in_;
    const float *step_;
    const int64_t chunk_; // candidates at a time
    std::vector<double> h_;
    std::vector<float> root_; // square roots of h
    std::vector<float> a_;    // [rows, columns] root * w
    std::vector<double> slack_;
    std::vector<float> u_;  // [columns, chunk] root * v, of length 1
    std::vector<float> p_;  // [rows, chunk] minus the projections
    std::vector<int8_t> v_; // [chunk, columns]

public:
    std::vector<Best> best;
};

} // namespace

int64_t seed_search(const float *weights, int64_t n_out, int64_t n_in, const SeedSearch &spec, const float *importance,
                    const float *step, uint16_t *choice, int8_t *gain, int threads) {
    const int64_t units = step == nullptr ? 1 : (n_in + spec.block - 1) / spec.block;
    const int64_t slabs = (n_out + kSlab - 1) / kSlab;
    std::atomic<int64_t> scored{0};
    parallel_for(slabs * units, threads, [&](int64_t item, int) {
        const int64_t row_begin = item / units * kSlab;
        const int64_t block = item % units;
        const int64_t begin = block * spec.block;
        const int64_t columns = step == nullptr ? n_in : std::min<int64_t>(spec.block, n_in - begin);
        const Unit unit{spec,  row_begin, std::min(kSlab, n_out - row_begin),
                        begin, columns,   step == nullptr ? -1 : block};
        Search search(unit, weights, n_in, importance, step);
        scored += search.run();
        for (int64_t r = 0; r < unit.rows; ++r) {
            const int64_t at = (row_begin + r) * units + block;
            choice[at] = search.best[r].choice;
            if (gain != nullptr) {
                gain[at] = search.best[r].gain;
            }
        }
    });
    return scored;
}

} // namespace seeddelta
