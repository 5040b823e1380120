// Products with a matrix in column layout.
#pragma once
#include "linear/workspace.hpp"
#include "seeddelta/columns.hpp"

namespace seeddelta {

// y [n_out] = W x for the active units of one token, on the calling thread.
void columns_compute_active(const ColumnWeight &w, const ActiveSet &active, float *y);

} // namespace seeddelta
