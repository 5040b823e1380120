#include "kernels/trellis_columns.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

namespace seeddelta {

// Where the outputs of a thread begin.
static int64_t slice_of(const ColumnWeight &w, int ith, int nth) {
    return std::min((w.n_out + kOutputSlice - 1) / kOutputSlice * ith / nth * kOutputSlice, w.n_out);
}

// The same activations as lists of the units that are not 0.
static ColumnInput listed(const int8_t *q, const float *scale, int64_t n_in, std::vector<int32_t> &index,
                          std::vector<int32_t> &begin, std::vector<int8_t> &values) {
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
    return in;
}

static void multiply_one(const ColumnWeight &w, const int8_t *q, const float *scale, int64_t begin, int64_t end,
                         float *y) {
    if (begin == end) {
        return;
    }
    thread_local std::vector<int32_t> index;
    thread_local std::vector<int32_t> groups;
    thread_local std::vector<int8_t> values;
    const ColumnInput in = listed(q, scale, w.n_in, index, groups, values);
    kernels().columns_trellis(w, in, begin, end, y);
}

void columns_compute_all(const ColumnWeight &w, const float *x, int64_t n_tokens, int64_t x_stride, float *y,
                         int64_t y_stride, Workspace::Impl &workspace, int ith, int nth, ComputeStatus &status) {
    const KernelTable &k = kernels();
    const int64_t stride = padded(w.n_in);
    const int64_t groups = stride / kGroup;
    if (ith == 0) {
        workspace.q.reserve(n_tokens * stride);
        workspace.scale.reserve(n_tokens * groups);
        workspace.sum.reserve(n_tokens * groups);
    }
    workspace.barrier(nth);
    auto *scaled = reinterpret_cast<float *>(thread_scratch(w.n_in * static_cast<int64_t>(sizeof(float))));
    for (int64_t token = n_tokens * ith / nth; token < n_tokens * (ith + 1) / nth; ++token) {
        for (int64_t j = 0; j < w.n_in; ++j) {
            scaled[j] = x[token * x_stride + j] * w.unit_scale[j];
        }
        if (!k.quantize(scaled, w.n_in, workspace.q.data + token * stride, workspace.scale.data + token * groups,
                        workspace.sum.data + token * groups)) {
            status.nonfinite_input.store(true, std::memory_order_relaxed);
        }
    }
    workspace.barrier(nth);
    const int64_t begin = slice_of(w, ith, nth);
    const int64_t end = slice_of(w, ith + 1, nth);
    if (n_tokens == 1) {
        multiply_one(w, workspace.q.data, workspace.scale.data, begin, end, y);
    } else if (begin < end) {
        const Activations a{n_tokens,           w.n_in, stride,   workspace.q.data, workspace.scale.data,
                            workspace.sum.data, x,      x_stride, nullptr};
        k.columns_trellis_many(w, a, begin, end, y, y_stride);
    }
    bool finite = true; // a rotation keeps it so
    for (int64_t token = 0; token < n_tokens; ++token) {
        for (int64_t o = begin; o < end; ++o) {
            finite = finite && std::isfinite(y[token * y_stride + o]);
        }
    }
    if (!finite) {
        status.nonfinite_output.store(true, std::memory_order_relaxed);
    }
    if (w.rotation_block > 1) {
        workspace.barrier(nth); // what is rotated together is of all threads
        const int64_t g = w.n_out / w.rotation_block;
        for (int64_t token = 0; token < n_tokens; ++token) {
            k.rotate_back(y + token * y_stride, w.n_out, w.rotation_block, w.rotation_seed, g * ith / nth,
                          g * (ith + 1) / nth);
        }
    }
}

void columns_compute_active(const ColumnWeight &w, const ActiveSet &active, float *y) {
    std::vector<float> scaled(static_cast<size_t>(w.n_in));
    for (int64_t i = 0; i < active.n; ++i) {
        scaled[static_cast<size_t>(active.index[i])] = active.value[i] * w.unit_scale[active.index[i]];
    }
    const int64_t stride = padded(w.n_in);
    std::vector<int8_t> q(static_cast<size_t>(stride));
    std::vector<float> scale(static_cast<size_t>(stride / kGroup));
    std::vector<int32_t> sum(scale.size());
    kernels().quantize(scaled.data(), w.n_in, q.data(), scale.data(), sum.data());
    multiply_one(w, q.data(), scale.data(), 0, w.n_out, y);
    if (w.rotation_block > 1) {
        kernels().rotate_back(y, w.n_out, w.rotation_block, w.rotation_seed, 0, w.n_out / w.rotation_block);
    }
}

} // namespace seeddelta
