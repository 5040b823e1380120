// The definition of a prompt's arithmetic: every other table must give these bits.
#include <algorithm>
#include <cmath>
#include <limits>

#include "simd/attention_kernels.hpp"

namespace seeddelta {

namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();

float score_of(const PromptTask &t, int64_t row, int64_t i) {
    const float *key = t.keys + i / kPanel * t.dim_k * kPanel + i % kPanel;
    float s = 0.0F;
    for (int64_t d = 0; d < t.dim_k; ++d) {
        s = std::fma(t.q[row * t.dim_k + d], key[d * kPanel], s);
    }
    if (t.softcap != 0.0F) {
        s = t.softcap * tanh_defined(s);
    }
    const PromptRow &seen = t.row[row];
    if (seen.bias == nullptr) {
        return s;
    }
    return seen.bias[i] == kNone ? kNone : s + seen.slope * seen.bias[i];
}

void attend_row(const PromptTask &t, int64_t row) {
    const auto [bias, slope, from, to] = t.row[row];
    float weight[kAttentionChunk] = {};
    float top = kNone;
    for (int64_t i = from; i < to; ++i) {
        weight[i] = score_of(t, row, i);
        top = weight[i] > top ? weight[i] : top;
    }
    top = std::max(t.top[row], top + 0.0F); // one zero, whatever the order
    float lane[kLanes] = {};
    for (int64_t i = from; i < to; ++i) {
        weight[i] = exp_defined(weight[i] - top);
        lane[i % kLanes] += weight[i];
    }
    const float factor = exp_defined(t.top[row] - top);
    t.top[row] = top;
    t.sum[row] = t.sum[row] * factor + fold_lanes(lane);
    const int64_t width = whole_panels(t.dim_v);
    for (int64_t d = 0; d < width; ++d) {
        float sum = t.out[row * width + d] * factor;
        for (int64_t i = from; i < to; ++i) {
            sum = std::fma(weight[i], t.values[(d / kPanel * kAttentionChunk + i) * kPanel + d % kPanel], sum);
        }
        t.out[row * width + d] = sum;
    }
}

} // namespace

void widen_scalar(const WidenTask &t) {
    float wide[kLargestHead];
    for (int64_t i = 0; i < kAttentionChunk; ++i) {
        const bool visible = t.sees(i);
        std::fill_n(wide, kLargestHead, 0.0F);
        if (visible) {
            widen_row(t.k_type, t.k + i * t.k_stride, t.dim_k, wide);
        }
        for (int64_t d = 0; d < t.dim_k; ++d) {
            t.keys[(i / kPanel * t.dim_k + d) * kPanel + i % kPanel] = wide[d];
        }
        std::fill_n(wide, kLargestHead, 0.0F);
        if (visible) {
            widen_row(t.v_type, t.v + i * t.v_stride, t.dim_v, wide);
        }
        for (int64_t d = 0; d < whole_panels(t.dim_v); ++d) {
            t.values[(d / kPanel * kAttentionChunk + i) * kPanel + d % kPanel] = wide[d];
        }
    }
}

void prompt_scalar(const PromptTask &t) {
    for (int64_t row = 0; row < t.rows; ++row) {
        if (t.row[row].from < t.row[row].to) {
            attend_row(t, row);
        }
    }
}

} // namespace seeddelta
