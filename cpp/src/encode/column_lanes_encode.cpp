// Byte lanes in column layout: the streams of a unit, 32 at once.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "encode/aligned.hpp"
#include "encode/lane_levels.hpp"
#include "encode/lane_search.hpp"
#include "encode/units.hpp"
#include "format/column_lanes.hpp"
#include "format/parallel.hpp"
#include "seeddelta/encode.hpp"

namespace seeddelta {
namespace {

// Of the 256 pairs of codes that a stream may end with and so begins after, the best is found by closed searches of so
// many, chosen by what they cost with the stream cut open at 1 / kCuts, 2 / kCuts, ... of it (research/columns).
constexpr int64_t kCandidates = 24;
constexpr int64_t kCuts = 4;

// What all streams share.
struct Shape {
    const LaneCode &code;
    LaneLevels levels;
    LaneWeights weights;
    double weight_unit;
    int64_t n_out, n_in, steps, streams;
    std::vector<LaneStep> forwards, backwards; // [steps]
    std::vector<int64_t> first_value;          // [steps + 1]
    std::vector<int16_t> weight;               // [kColumnValues]

    Shape(const LaneCode &c, int64_t outputs, int64_t inputs)
        : code(c), levels(c), weights(c), weight_unit(weights.unit({1.0F})), n_out(outputs), n_in(inputs),
          steps(column_steps(c)), streams(column_streams(outputs)),
          weight(kColumnValues, LaneWeights::weight(weight_unit, 1.0F)) {
        ColumnWeight w;
        w.n_out = n_out;
        w.lane_code = &code;
        for (int64_t o = 0; o < n_out; o += kColumnValues * places.back().streams) {
            const ColumnStrip strip(w, o);
            for (int64_t stream = 0; stream < strip.streams; ++stream) {
                places.push_back({o, strip.streams, stream});
            }
        }
        first_value.push_back(0);
        for (int64_t t = 0; t < steps; ++t) {
            const auto phase = static_cast<size_t>(t % code.steps);
            forwards.push_back(levels.forwards[phase]);
            backwards.insert(backwards.begin(), levels.backwards[phase]);
            first_value.push_back(first_value.back() + code.emits[phase]);
        }
    }

    // The code so many steps before step t.
    int before(const uint8_t *codes, int64_t t, int64_t steps_before) const {
        return codes[(t + steps - steps_before) % steps];
    }

    // The output of value v of a stream.
    int64_t output(int64_t stream, int64_t v) const {
        const Place &place = places[static_cast<size_t>(stream)];
        return place.begin + v * place.streams + place.stream;
    }

    // A stream's strip, by its first output and how many streams it has, and which of them it is.
    struct Place {
        int64_t begin, streams, stream;
    };
    std::vector<Place> places; // [streams]
};

// The search of 32 streams of one worker.
class Streams {
public:
    explicit Streams(const Shape &shape)
        : shape_(shape), search_(shape.levels, shape.weights.error_shift, shape.steps),
          target_(kColumnValues * kSearchRows), reversed_(kColumnValues * kSearchRows) {}

    // Streams [first, first + count): codes and bits, a row of `steps` each.
    void search(const float *unit, double scale, int64_t first, int64_t count, uint8_t *codes, uint8_t *bits) {
        set_targets(unit, scale, first, count);
        price_ends();
        int32_t best[kSearchRows];
        for (int64_t r = 0; r < kSearchRows; ++r) {
            best[r] = std::numeric_limits<int32_t>::max();
        }
        for (int64_t candidate = 0; candidate < kCandidates; ++candidate) {
            for (int64_t r = 0; r < kSearchRows; ++r) {
                start_[r] = search_.take_cheapest(r);
            }
            run(0, shape_.steps, start_, false);
            for (int64_t r = 0; r < count; ++r) {
                const int32_t cost = search_.cost(start_[r], r);
                if (cost < best[r]) {
                    best[r] = cost;
                    search_.trace(shape_.steps, start_[r], r, codes + r * shape_.steps);
                }
            }
        }
        for (int64_t r = 0; r < count; ++r) {
            choose_bits(unit, scale, first + r, codes + r * shape_.steps, bits + r * shape_.steps);
        }
    }

private:
    double missing(const float *unit, double scale, int64_t output) const {
        const double x = output < shape_.n_out ? unit[output] / scale : 0.0;
        return x == x ? x : 0.0;
    }

    void set_targets(const float *unit, double scale, int64_t first, int64_t count) {
        for (int64_t v = 0; v < kColumnValues; ++v) {
            for (int64_t r = 0; r < kSearchRows; ++r) {
                const int64_t output = r < count ? shape_.output(first + r, v) : shape_.n_out;
                const double x = shape_.levels.clamped(missing(unit, scale, output));
                target_[static_cast<size_t>(v * kSearchRows + r)] =
                    static_cast<int16_t>(std::nearbyint(x * shape_.weight[0]));
            }
        }
    }

    // Steps [from, from + count), or backwards.
    void run(int64_t from, int64_t count, const int16_t *start, bool backwards) {
        const int64_t value = shape_.first_value[static_cast<size_t>(from)];
        const int64_t values = shape_.first_value[static_cast<size_t>(from + count)] - value;
        const auto &emitted = backwards ? shape_.backwards : shape_.forwards;
        const int64_t at = backwards ? shape_.steps - from - count : from;
        const int16_t *target = target_.data() + value * kSearchRows;
        if (backwards) {
            for (int64_t v = 0; v < values; ++v) {
                std::copy_n(target + (values - 1 - v) * kSearchRows, kSearchRows, reversed_.data() + v * kSearchRows);
            }
            // the values of a step keep their order
            int64_t v = 0;
            for (int64_t t = 0; t < count; ++t) {
                if (emitted[static_cast<size_t>(at + t)].values == 2) {
                    std::swap_ranges(reversed_.data() + v * kSearchRows, reversed_.data() + (v + 1) * kSearchRows,
                                     reversed_.data() + (v + 1) * kSearchRows);
                }
                v += emitted[static_cast<size_t>(at + t)].values;
            }
            target = reversed_.data();
        }
        search_.run(emitted.data() + at, count, target, shape_.weight.data(), start);
    }

    // What each pair of codes costs that the stream ends and begins with, by searches of what is after it up to a cut
    // and of what is before it from there on. Each is less than the closed stream costs, which has to meet at the cut,
    // too; the sum over several cuts tells best which pairs are worth a search.
    void price_ends() {
        search_.clear_prices();
        for (int64_t cut = 1; cut < kCuts; ++cut) {
            const int64_t step = shape_.steps * cut / kCuts;
            run(step, shape_.steps - step, nullptr, false);
            search_.add_prices(false);
            run(0, step, nullptr, true);
            search_.add_prices(true);
        }
    }

    // The planes' bits: the values nearest to the weights.
    void choose_bits(const float *unit, double scale, int64_t stream, const uint8_t *codes, uint8_t *bits) const {
        const int64_t steps = shape_.steps;
        std::fill_n(bits, steps, uint8_t{0});
        for (int64_t t = 0; t < steps; ++t) {
            for (int i = 0; i < shape_.code.plane_values(t); ++i) {
                const int64_t v = shape_.first_value[static_cast<size_t>(t)] + i;
                const double left = missing(unit, scale, shape_.output(stream, v)) -
                                    lane_value(shape_.code, static_cast<int>(v % shape_.code.values), i, codes[t],
                                               shape_.before(codes, t, 1), shape_.before(codes, t, 2));
                bits[t] |= static_cast<uint8_t>(shape_.levels.nearest_bits(left) << i * shape_.code.planes);
            }
        }
    }

    const Shape &shape_;
    LaneSearch search_;
    AlignedVector<int16_t> target_, reversed_;
    int16_t start_[kSearchRows] = {};
};

// The byte lanes, for units.hpp.
class LaneUnits {
public:
    LaneUnits(const Shape &shape, const LanesSpec &spec, uint8_t *codes, int workers)
        : shape_(shape), factor_(spec.scale_factor > 0 ? spec.scale_factor : kLaneScaleFactor), out_(codes),
          codes_(static_cast<size_t>(shape.streams * shape.steps)), bits_(codes_.size()),
          values_(static_cast<size_t>(shape.streams * kColumnValues)) {
        for (int i = 0; i < workers; ++i) {
            searches_.push_back(std::make_unique<Streams>(shape));
        }
    }
    double deviation() const { return shape_.code.deviation; }
    double scale_factor() const { return factor_; }

    void search(int worker, int workers, const float *unit, double scale) {
        const int64_t begin = shape_.streams * worker / workers;
        const int64_t end = shape_.streams * (worker + 1) / workers;
        for (int64_t stream = begin; stream < end; stream += kSearchRows) {
            const int64_t count = std::min(kSearchRows, end - stream);
            searches_[static_cast<size_t>(worker)]->search(unit, scale, stream, count,
                                                           codes_.data() + stream * shape_.steps,
                                                           bits_.data() + stream * shape_.steps);
        }
        for (int64_t stream = begin; stream < end; ++stream) {
            set_values(stream);
        }
    }
    float value(int64_t output) const { return values_[static_cast<size_t>(output)]; }

    void store(int64_t unit) const {
        const LaneCode &code = shape_.code;
        ColumnWeight w;
        w.n_out = shape_.n_out;
        w.n_in = shape_.n_in;
        w.lane_code = &code;
        w.codes = out_;
        for (int64_t stream = 0; stream < shape_.streams; ++stream) {
            const Shape::Place &place = shape_.places[static_cast<size_t>(stream)];
            const ColumnStrip strip(w, place.begin);
            uint8_t *bytes = out_ + (strip.codes - out_) + unit * strip.bytes;
            const uint8_t *c = codes_.data() + stream * shape_.steps;
            const uint8_t *b = bits_.data() + stream * shape_.steps;
            for (int64_t t = 0; t < shape_.steps; ++t) {
                bytes[strip.at(code.code_line(t), place.stream)] |= static_cast<uint8_t>(c[t] << (t % 2 * 4));
                for (int i = 0; i < code.plane_values(t); ++i) {
                    for (int p = 0; p < code.planes; ++p) {
                        bytes[strip.at(code.plane_line(t, p), place.stream)] |=
                            static_cast<uint8_t>((code.bits_of(b[t], i) >> p & 1) << code.plane_bit(t, i));
                    }
                }
            }
        }
    }

private:
    void set_values(int64_t stream) {
        const int64_t steps = shape_.steps;
        const uint8_t *c = codes_.data() + stream * steps;
        const uint8_t *b = bits_.data() + stream * steps;
        int64_t v = 0;
        for (int64_t t = 0; t < steps; ++t) {
            for (int i = 0; i < shape_.code.emits[t % shape_.code.steps]; ++i, ++v) {
                const int value = lane_value(shape_.code, static_cast<int>(v % shape_.code.values), i, c[t],
                                             shape_.before(c, t, 1), shape_.before(c, t, 2));
                values_[static_cast<size_t>(shape_.output(stream, v))] =
                    static_cast<float>(value + shape_.code.added_by(shape_.code.bits_of(b[t], i)));
            }
        }
    }

    const Shape &shape_;
    double factor_;
    uint8_t *out_;
    std::vector<uint8_t> codes_, bits_; // [streams, steps] of the unit
    std::vector<float> values_;         // [streams * kColumnValues] of the unit
    std::vector<std::unique_ptr<Streams>> searches_;
};

} // namespace

void columns_lanes_encode(const float *units, int64_t n_out, int64_t n_in, const LanesSpec &spec, uint8_t *codes,
                          uint16_t *input_scale, int threads) {
    const Shape shape(*spec.code, n_out, n_in);
    std::memset(codes, 0, static_cast<size_t>(n_in * shape.streams * column_lines(*spec.code)));
    const int workers = worker_count(shape.streams, threads);
    LaneUnits lanes(shape, spec, codes, workers);
    encode_units(units, n_out, n_in, spec.feedback, lanes, input_scale, workers);
}

} // namespace seeddelta
