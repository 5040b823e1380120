// The definition: every other table must give these bits.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "format/activations.hpp"
#include "format/float16.hpp"
#include "format/lanes.hpp"
#include "format/proc_sparse.hpp"
#include "format/rotation.hpp"
#include "simd/columns_scalar.hpp"
#include "simd/kernel_table.hpp"
#include "simd/lane_search_scalar.hpp"

namespace seeddelta {

static bool finite(float x) {
    return (std::bit_cast<uint32_t>(x) & 0x7F800000U) != 0x7F800000U;
}

static bool quantize(const float *x, int64_t n, int64_t scale_groups, int8_t *q, float *scale, int32_t *bias) {
    bool all_finite = true;
    for (int64_t start = 0; start < n; start += scale_groups * kGroup) {
        float all[kScaleGroups * kGroup] = {};
        const int64_t count = std::min(n - start, scale_groups * kGroup);
        const int64_t groups = (count + kGroup - 1) / kGroup;
        std::copy_n(x + start, count, all);
        float largest = kFourShare * largest_four(all, groups * kGroup);
        const bool all_are = std::ranges::all_of(all, finite) && finite(largest);
        for (const float value : all) {
            largest = std::fmax(largest, std::fabs(value));
        }
        all_finite = all_finite && all_are;
        // Below 2^-100 the inverse would overflow, and the columns are nothing beside the others.
        const bool used = all_are && largest >= 0x1p-100F;
        const float inverse = used ? 127.0F / largest : 0.0F;
        for (int64_t g = 0; g < groups; ++g) {
            *scale++ = used ? largest / 127.0F : 0.0F;
            int32_t sum = 0;
            for (int64_t i = g * kGroup; i < (g + 1) * kGroup; ++i) {
                q[start + i] = used ? static_cast<int8_t>(std::nearbyint(all[i] * inverse)) : int8_t{0};
                sum += q[start + i];
            }
            *bias++ = -kValueBias * sum;
        }
    }
    return all_finite;
}

static void base_row(const seeddelta_ctx &ctx, int64_t row, int16_t *values) {
    switch (ctx.base) {
    case BaseKind::lanes:
        lanes_row(ctx, row, values);
        break;
    default:
        std::fill_n(values, ctx.n_in, int16_t{0});
        Kinds::base(ctx.base, [&]<class K>() {
            if constexpr (!K::kPrepares) {
                K::values(ctx, row, values);
            }
        });
    }
}

static float residual_dot(const seeddelta_ctx &ctx, int64_t row, const float *x, const float *p) {
    float sum = 0.0F;
    Kinds::scheme(ctx.scheme, [&]<class K>() { sum = K::dot(ctx, row, x, p); });
    return sum;
}

static void prepare(const seeddelta_ctx &ctx, const PrepareWork &work, float *scratch) {
    Kinds::both(ctx, [&]<class K>() {
        if constexpr (K::kPrepares) {
            K::prepare(ctx, work, scratch);
        }
    });
}

static bool compute(const seeddelta_ctx &ctx, const Activations &a, int64_t tile_begin, int64_t tile_end,
                    uint8_t *panel, float *y, int64_t y_stride) {
    bool all_finite = true;
    auto *values = reinterpret_cast<int16_t *>(panel);
    const int64_t row_end = std::min(tile_end * kTileRows, ctx.n_out);
    const bool in_y = base_in_y(ctx);
    const int64_t together = ctx.scale_groups();
    for (int64_t row = tile_begin * kTileRows; row < row_end; ++row) {
        const bool sparse = ctx.scheme == ResidualScheme::proc_sparse;
        if (!sparse) {
            base_row(ctx, row, values);
        }
        const float row_scale =
            ctx.row_scale_f16 != nullptr ? half_to_float(ctx.row_scale_f16[row]) : ctx.row_scale_f32[row];
        for (int64_t token = 0; token < a.n_tokens; ++token) {
            const int8_t *q = a.q + token * a.stride;
            float acc = in_y ? y[a.place(token) * y_stride + row] : 0.0F;
            for (int64_t group = 0; !in_y && !sparse && group < ctx.n_groups(); group += together) {
                int32_t dot = 0;
                for (int64_t i = group * kGroup; i < std::min((group + together) * kGroup, ctx.n_in); ++i) {
                    dot += values[i] * q[i];
                }
                acc += static_cast<float>(dot) * a.scale[token * (a.stride / kGroup) + group];
            }
            float residual = 0.0F;
            if (sparse) {
                proc_sparse_dot(ctx, row, q, a.scale + token * (a.stride / kGroup), acc, residual);
            } else {
                const float *x = a.x == nullptr ? nullptr : a.x + token * a.x_stride; // there for a residual
                residual = residual_dot(ctx, row, x, a.p + token * ctx.dictionary_size);
            }
            const float out = row_scale * (acc * ctx.base_scale + residual);
            all_finite = all_finite && finite(out);
            y[a.place(token) * y_stride + row] = out;
        }
    }
    return all_finite;
}

void subtract_product_scalar(float *w, int64_t w_stride, const float *e, int64_t e_stride, const float *f,
                             int64_t f_stride, int64_t rows, int64_t inner, int64_t n) {
    for (int64_t r = 0; r < rows; ++r) {
        for (int64_t i = 0; i < inner; ++i) {
            for (int64_t j = 0; j < n; ++j) {
                float &sum = w[r * w_stride + j];
                sum = std::fma(-e[r * e_stride + i], f[i * f_stride + j], sum);
            }
        }
    }
}

const KernelTable &kernels_scalar() {
    static const KernelTable table{
        .name = "scalar",
        .linear = {.rotate = rotate,
                   .rotate_back = rotate_back,
                   .quantize = quantize,
                   .prepare = prepare,
                   .compute = compute,
                   .columns_f16 = columns_f16_scalar,
                   .columns_f16_batch = columns_f16_batch_scalar,
                   .columns_lanes = columns_lanes_scalar,
                   .columns_lanes_many = columns_lanes_many_scalar},
        .attention = attention_scalar(),
        .gating = {.count_above = count_above_scalar, .bitmaps = bitmaps_scalar, .popcount = popcount_scalar},
        .encode = {.lane_search = lane_search_scalar, .subtract_product = subtract_product_scalar}};
    return table;
}

} // namespace seeddelta
