// Products with a matrix in column layout.
#pragma once
#include "kernels/workspace.hpp"
#include "seeddelta/columns.hpp"

namespace seeddelta {

// y = W x for a trellis with all units active. All nth threads call this; contains barriers.
void columns_compute_all(const ColumnWeight &w, const float *x, int64_t n_tokens, int64_t x_stride, float *y,
                         int64_t y_stride, Workspace::Impl &workspace, int ith, int nth, ComputeStatus &status);

// y [n_out] = W x for the active units of one token, on the calling thread.
void columns_compute_active(const ColumnWeight &w, const ActiveSet &active, float *y);

} // namespace seeddelta
