// Column layout: unit after unit, each coded as a whole, its error fed back to the units after it (GPTQ, Frantar et al.
// 2023).
//
// `Code` is how a unit is coded: deviation() of its values, scale_factor() (the scale of the search over the unit's
// root mean square), search(worker, workers, unit, scale) (one worker's share), value(output) of what was found, and
// store(number).
#pragma once
#include <barrier>
#include <cmath>
#include <cstdint>
#include <vector>

#include "format/float16.hpp"
#include "format/parallel.hpp"
#include "simd/kernel_table.hpp"

namespace seeddelta {

inline constexpr int64_t kLazyUnits = 64; // whose errors reach the units after them together

inline double root_mean_square(const float *unit, int64_t n) {
    double energy = 0;
    for (int64_t i = 0; i < n; ++i) {
        energy += static_cast<double>(unit[i]) * unit[i];
    }
    return std::sqrt(energy / static_cast<double>(n));
}

// Least squares of the unit on its values, as float16 bits.
template <class Code>
uint16_t fitted_scale(const Code &code, const float *unit, int64_t n_out) {
    double cross = 0;
    double square = 0;
    for (int64_t i = 0; i < n_out; ++i) {
        const double v = code.value(i) / code.deviation();
        cross += unit[i] * v;
        square += v * v;
    }
    return float_to_half(square > 0 && cross > 0 ? static_cast<float>(cross / square) : 0.0F);
}

// What is left of outputs [begin, end) of a unit.
template <class Code>
void take_error(const Code &code, const float *unit, uint16_t scale, int64_t begin, int64_t end, float *error) {
    const float step = half_to_float(scale) / static_cast<float>(code.deviation());
    for (int64_t i = begin; i < end; ++i) {
        error[i] = unit[i] - (step > 0 ? step * code.value(i) : 0.0F);
    }
}

// units [n_in, n_out], feedback as of columns_lanes_encode; input_scale [n_in], float16 bits.
template <class Code>
void encode_units(const float *units, int64_t n_out, int64_t n_in, const float *feedback, Code &code,
                  uint16_t *input_scale, int workers) {
    std::vector<float> moved(units, units + n_in * n_out);
    std::vector<float> error(static_cast<size_t>(std::min(kLazyUnits, n_in) * n_out));
    std::barrier together(workers);
    // Each worker takes one index and keeps it: its share of a search, and outputs whose later units it changes.
    parallel_for(workers, workers, [&](int64_t index, int) {
        const int worker = static_cast<int>(index);
        const int64_t begin = n_out * worker / workers;
        const int64_t end = n_out * (worker + 1) / workers;
        const auto subtract = [&](int64_t first, int64_t last, int64_t from, int64_t count) {
            kernels().encode.subtract_product(
                moved.data() + first * n_out + begin, n_out, feedback + first * n_in + from, n_in,
                error.data() + from % kLazyUnits * n_out + begin, n_out, last - first, count, end - begin);
        };
        for (int64_t j = 0; j < n_in; ++j) {
            const float *unit = moved.data() + j * n_out;
            const double scale = root_mean_square(unit, n_out) * code.scale_factor() / code.deviation();
            if (scale > 0) {
                code.search(worker, workers, unit, scale);
            }
            together.arrive_and_wait();
            const uint16_t fitted = scale > 0 ? fitted_scale(code, unit, n_out) : uint16_t{0};
            if (worker == 0) {
                input_scale[j] = fitted;
                if (scale > 0) {
                    code.store(j);
                }
            }
            if (feedback != nullptr) {
                take_error(code, unit, fitted, begin, end, error.data() + j % kLazyUnits * n_out);
                const int64_t lazy = std::min((j / kLazyUnits + 1) * kLazyUnits, n_in);
                subtract(j + 1, lazy, j, 1);
                if (j + 1 == lazy) {
                    subtract(lazy, n_in, j / kLazyUnits * kLazyUnits, lazy - j / kLazyUnits * kLazyUnits);
                }
            }
            together.arrive_and_wait();
        }
    });
}

} // namespace seeddelta
