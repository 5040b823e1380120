// Units times their scales, rounded to integers.
#include <cmath>
#include <cstring>

#include "linear/columns_parts.hpp"

namespace seeddelta {

static constexpr float kLargest = 32767.0F;

// Groups of kGroup inputs to 16 bits; x and q have n, a multiple of kGroup. Written to be the same in every unit.
static void quantise_wide(const float *x, int64_t n, int16_t *q, float *scale) {
    for (int64_t start = 0; start < n; start += kGroup) {
        float amax = 0.0F;
        for (int64_t i = start; i < start + kGroup; ++i) {
            const float magnitude = std::fabs(x[i]);
            amax = amax < magnitude ? magnitude : amax;
        }
        // Below 2^-100 the inverse would overflow, and the group is nothing beside the others.
        const bool usable = amax >= 0x1p-100F && amax <= 0x1p127F;
        scale[start / kGroup] = usable ? amax / kLargest : 0.0F;
        const float inverse = usable ? kLargest / amax : 0.0F;
        constexpr float round = 12582912.0F; // 1.5 * 2^23: what is added to it is rounded to an integer, ties to even
        for (int64_t i = start; usable && i < start + kGroup; ++i) {
            const float rounded = (x[i] * inverse + round) - round;
            q[i] = rounded == rounded ? static_cast<int16_t>(static_cast<int32_t>(rounded)) : int16_t{0}; // NaN: 0
        }
        for (int64_t i = start; !usable && i < start + kGroup; ++i) {
            q[i] = 0;
        }
    }
}

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

ColumnInput quantise_units(const ColumnWeight &w, const ActiveSet &set) {
    const int64_t n = padded(w.n_in);
    const int64_t groups = n / kGroup;
    const bool wide = w.kind == ColumnKind::i8;
    const bool lanes = w.kind == ColumnKind::lanes;
    Pieces pieces(unit_bytes(w.n_in));
    auto *x = pieces.take<float>(n);
    auto *dense = pieces.take<int16_t>(n);
    auto *q = pieces.take<int16_t>(n);
    auto *list = pieces.take<int32_t>(n + kListMore);
    auto *scale = pieces.take<float>(groups);
    auto *bias = pieces.take<int32_t>(groups);
    auto *begin = pieces.take<int32_t>(groups + 1);
    auto *dense8 = reinterpret_cast<int8_t *>(dense);
    auto *q8 = reinterpret_cast<int8_t *>(q);
    if (set.n == w.n_in) { // index is 0, 1, 2, ..., or null
        for (int64_t i = 0; i < set.n; ++i) {
            x[i] = set.value[i] * w.unit_scale[i];
        }
        std::memset(x + set.n, 0, static_cast<size_t>(n - set.n) * sizeof(float));
    } else {
        std::memset(x, 0, static_cast<size_t>(n) * sizeof(float));
        for (int64_t i = 0; i < set.n; ++i) {
            x[set.index[i]] = set.value[i] * w.unit_scale[set.index[i]];
        }
    }
    if (wide) {
        quantise_wide(x, n, dense, scale);
    } else {
        kernels().linear.quantize(x, w.n_in, 1, dense8, scale, bias);
    }
    ColumnInput in{set.n, set.index, wide ? nullptr : q8, wide ? q : nullptr, groups, begin, scale, bias};
    if (set.n == w.n_in || multiplies_all(w, set.n)) {
        for (int64_t g = 0; g <= groups; ++g) {
            begin[g] = static_cast<int32_t>(std::min(g * kGroup, w.n_in));
        }
        in.n = w.n_in;
        in.index = lanes ? nullptr : set.index;
        in.q = wide ? nullptr : dense8;
        in.q16 = wide ? dense : nullptr;
        return in;
    }
    if (lanes) {
        in.n = list_lanes(set, w.n_in, groups, dense8, list, q8, begin);
        in.index = list;
        return in;
    }
    int64_t i = 0;
    for (int64_t g = 0; g < groups; ++g) {
        begin[g] = static_cast<int32_t>(i);
        for (; i < set.n && set.index[i] < (g + 1) * kGroup; ++i) {
            if (wide) {
                q[i] = dense[set.index[i]];
            } else {
                q8[i] = dense8[set.index[i]];
            }
        }
    }
    begin[groups] = static_cast<int32_t>(i);
    return in;
}

void quantise_row(const ColumnWeight &w, const float *x, int64_t token, Workspace::Impl &ws) {
    const int64_t stride = padded(w.n_in);
    int16_t *row = ws.wide.data + token * stride;
    float *scale = ws.scale.data + token * (stride / kGroup);
    Pieces pieces(Pieces::bytes<float>(stride));
    auto *scaled = pieces.take<float>(stride);
    std::memset(scaled, 0, static_cast<size_t>(stride) * sizeof(float));
    for (int64_t i = 0; i < w.n_in; ++i) {
        scaled[i] = x[i] * w.unit_scale[i];
    }
    if (w.kind == ColumnKind::i8) {
        quantise_wide(scaled, stride, row, scale);
        return;
    }
    kernels().linear.quantize(scaled, w.n_in, 1, ws.q.data + token * stride, scale,
                              ws.bias.data + token * (stride / kGroup));
}

} // namespace seeddelta
