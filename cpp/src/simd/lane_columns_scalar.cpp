// The definition of products with byte lanes in column layout.
#include <algorithm>

#include "format/column_lanes.hpp"
#include "simd/linear_kernels.hpp"

namespace seeddelta {

void columns_lanes_scalar(const ColumnWeight &w, const ColumnInput &in, int64_t begin, int64_t end, float *y) {
    std::fill(y + begin, y + end, 0.0F);
    int64_t outputs = 0;
    for (int64_t o = begin; o < end; o += outputs) {
        const ColumnStrip strip(w, o);
        outputs = std::min(strip.begin + strip.outputs(), end) - o;
        for (int64_t g = 0; g < in.n_groups; ++g) {
            int32_t sum[kWideOutputs] = {};
            for (int32_t i = in.begin[g]; i < in.begin[g + 1]; ++i) {
                int8_t values[kWideOutputs];
                column_strip_values(w, strip, in.index == nullptr ? i : in.index[i], values);
                for (int64_t p = 0; p < outputs; ++p) {
                    sum[p] += values[o - strip.begin + p] * in.q[i];
                }
            }
            for (int64_t p = 0; p < outputs; ++p) {
                y[o + p] += static_cast<float>(sum[p]) * in.scale[g];
            }
        }
    }
}

void columns_lanes_many_scalar(const ColumnWeight &w, const Activations &a, int64_t begin, int64_t end, float *y,
                               int64_t y_stride) {
    int8_t values[kGroup * kWideOutputs];
    const int64_t groups = a.stride / kGroup;
    for (int64_t token = 0; token < a.n_tokens; ++token) {
        std::fill(y + token * y_stride + begin, y + token * y_stride + end, 0.0F);
    }
    int64_t outputs = 0;
    for (int64_t o = begin; o < end; o += outputs) {
        const ColumnStrip strip(w, o);
        outputs = std::min(strip.begin + strip.outputs(), end) - o;
        for (int64_t g = 0; g < groups; ++g) {
            const int64_t count = std::min(kGroup, w.n_in - g * kGroup);
            for (int64_t i = 0; i < count; ++i) {
                column_strip_values(w, strip, g * kGroup + i, values + i * kWideOutputs);
            }
            for (int64_t token = 0; token < a.n_tokens; ++token) {
                const int8_t *q = a.q + token * a.stride + g * kGroup;
                for (int64_t p = 0; p < outputs; ++p) {
                    int32_t sum = 0;
                    for (int64_t i = 0; i < count; ++i) {
                        sum += values[i * kWideOutputs + o - strip.begin + p] * q[i];
                    }
                    y[token * y_stride + o + p] += static_cast<float>(sum) * a.scale[token * groups + g];
                }
            }
        }
    }
}

} // namespace seeddelta
