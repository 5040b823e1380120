// Units of byte lanes times their scales, rounded to integers.
#include <algorithm>
#include <cstring>

#include "linear/columns_parts.hpp"

namespace seeddelta {

// The list of byte lanes (ColumnInput::index). A group has kGroup units, a multiple of kListStep. Returns its length.
static int64_t list_lanes(const ActiveSet &set, int64_t n_in, int64_t groups, const int8_t *dense, int32_t *index,
                          int8_t *q, int32_t *begin) {
    int64_t i = 0;
    int32_t at = 0;
    for (int64_t g = 0; g < groups; ++g) {
        begin[g] = at;
        for (; i < set.n && set.index[i] < (g + 1) * kGroup; ++i, ++at) {
            index[at] = set.index[i];
            q[at] = dense[set.index[i]];
        }
        const int32_t last = at > 0 ? index[at - 1] : 0;
        for (; at % kListStep != 0; ++at) {
            index[at] = last;
            q[at] = 0;
        }
    }
    begin[groups] = at;
    for (int64_t i = 0; i < kListMore; ++i) {
        index[at + i] = at > 0 ? index[i] + static_cast<int32_t>(n_in) : 0;
    }
    return at;
}

ColumnInput quantize_units(const ColumnWeight &w, const ActiveSet &set) {
    const int64_t n = padded(w.n_in);
    const int64_t groups = n / kGroup;
    Pieces pieces(unit_bytes(w.n_in));
    auto *x = pieces.take<float>(n);
    auto *dense = pieces.take<int8_t>(n);
    auto *q = pieces.take<int8_t>(n + kListMore);
    auto *list = pieces.take<int32_t>(n + kListMore);
    auto *scale = pieces.take<float>(groups);
    auto *bias = pieces.take<int32_t>(groups);
    auto *begin = pieces.take<int32_t>(groups + 1);
    if (set.n == w.n_in) { // index is 0, 1, 2, ..., or null
        for (int64_t i = 0; i < set.n; ++i) {
            x[i] = set.value[i] * w.input_scale[i];
        }
        std::memset(x + set.n, 0, static_cast<size_t>(n - set.n) * sizeof(float));
    } else {
        std::memset(x, 0, static_cast<size_t>(n) * sizeof(float));
        for (int64_t i = 0; i < set.n; ++i) {
            x[set.index[i]] = set.value[i] * w.input_scale[set.index[i]];
        }
    }
    kernels().linear.quantize(x, w.n_in, 1, dense, scale, bias);
    if (set.n == w.n_in || multiplies_all(w, set.n)) {
        for (int64_t g = 0; g <= groups; ++g) {
            begin[g] = static_cast<int32_t>(std::min(g * kGroup, w.n_in));
        }
        return {w.n_in, nullptr, dense, groups, begin, scale, bias};
    }
    const int64_t listed = list_lanes(set, w.n_in, groups, dense, list, q, begin);
    return {listed, list, q, groups, begin, scale, bias};
}

void quantize_row(const ColumnWeight &w, const float *x, int64_t token, Workspace::Impl &ws) {
    const int64_t stride = padded(w.n_in);
    Pieces pieces(Pieces::bytes<float>(stride));
    auto *scaled = pieces.take<float>(stride);
    std::memset(scaled, 0, static_cast<size_t>(stride) * sizeof(float));
    for (int64_t i = 0; i < w.n_in; ++i) {
        scaled[i] = x[i] * w.input_scale[i];
    }
    kernels().linear.quantize(scaled, w.n_in, 1, ws.q.data + token * stride, ws.scale.data + token * (stride / kGroup),
                              ws.bias.data + token * (stride / kGroup));
}

} // namespace seeddelta
