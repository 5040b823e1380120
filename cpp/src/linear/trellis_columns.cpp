#include "linear/trellis_columns.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

namespace seeddelta {

// The same activations as lists of the units that are not 0.
static ColumnInput listed(const int8_t *q, const float *scale, const int32_t *bias, int64_t n_in,
                          std::vector<int32_t> &index, std::vector<int32_t> &begin, std::vector<int8_t> &values) {
    index.clear();
    values.clear();
    begin.assign(1, 0);
    for (int64_t j = 0; j < n_in; ++j) {
        if (q[j] != 0) {
            index.push_back(static_cast<int32_t>(j));
            values.push_back(q[j]);
        }
        if (j % kGroup == kGroup - 1 || j + 1 == n_in) {
            begin.push_back(static_cast<int32_t>(index.size()));
        }
    }
    ColumnInput in;
    in.n = static_cast<int64_t>(index.size());
    in.index = index.data();
    in.q = values.data();
    in.n_groups = static_cast<int64_t>(begin.size()) - 1;
    in.begin = begin.data();
    in.scale = scale;
    in.bias = bias;
    return in;
}

static void multiply_one(const ColumnWeight &w, const int8_t *q, const float *scale, const int32_t *bias, float *y) {
    thread_local std::vector<int32_t> index;
    thread_local std::vector<int32_t> groups;
    thread_local std::vector<int8_t> values;
    const ColumnInput in = listed(q, scale, bias, w.n_in, index, groups, values);
    const LinearKernels &linear = kernels().linear;
    (w.kind == ColumnKind::lanes ? linear.columns_lanes : linear.columns_trellis)(w, in, 0, w.n_out, y);
}

void columns_compute_active(const ColumnWeight &w, const ActiveSet &active, float *y) {
    std::vector<float> scaled(static_cast<size_t>(w.n_in));
    for (int64_t i = 0; i < active.n; ++i) {
        scaled[static_cast<size_t>(active.index[i])] = active.value[i] * w.unit_scale[active.index[i]];
    }
    const int64_t stride = padded(w.n_in);
    std::vector<int8_t> q(static_cast<size_t>(stride));
    std::vector<float> scale(static_cast<size_t>(stride / kGroup));
    std::vector<int32_t> bias(scale.size());
    kernels().linear.quantize(scaled.data(), w.n_in, q.data(), scale.data(), bias.data());
    multiply_one(w, q.data(), scale.data(), bias.data(), y);
    if (w.rotation_block > 1) {
        kernels().linear.rotate_back(y, w.n_out, w.rotation_block, w.rotation_seed, 0, w.n_out / w.rotation_block);
    }
}

} // namespace seeddelta
