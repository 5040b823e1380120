#include "format/column_dequantize.hpp"

#include <vector>

#include "format/column_lanes.hpp"
#include "format/rotation.hpp"

namespace seeddelta {

// values [n_out, whole slices] of a unit
static void unit_values(const ColumnWeight &w, int64_t unit, int8_t *values) {
    for (int64_t o = 0; o < w.n_out; o += ColumnStrip(w, o).outputs()) {
        column_strip_values(w, ColumnStrip(w, o), unit, values + o);
    }
}

void columns_dequantize(const ColumnWeight &w, int64_t row_begin, int64_t row_end, float *out) {
    std::vector<int8_t> values(static_cast<size_t>(w.positions()));
    std::vector<float> unit(static_cast<size_t>(w.n_out));
    for (int64_t j = 0; j < w.n_in; ++j) {
        unit_values(w, j, values.data());
        for (int64_t o = 0; o < w.n_out; ++o) {
            unit[static_cast<size_t>(o)] = static_cast<float>(values[static_cast<size_t>(o)]) * w.input_scale[j];
        }
        if (w.rotation_block > 1) {
            rotate_back(unit.data(), w.n_out, w.rotation_block, w.rotation_seed);
        }
        for (int64_t o = row_begin; o < row_end; ++o) {
            out[(o - row_begin) * w.n_in + j] = unit[static_cast<size_t>(o)];
        }
    }
}

} // namespace seeddelta
