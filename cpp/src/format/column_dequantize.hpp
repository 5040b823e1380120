// The weights of a matrix in column layout.
#pragma once
#include "seeddelta/columns.hpp"

namespace seeddelta {

// Rows [row_begin, row_end) of W, float32, into out [rows, n_in], for lanes.
void columns_dequantize(const ColumnWeight &w, int64_t row_begin, int64_t row_end, float *out);

} // namespace seeddelta
