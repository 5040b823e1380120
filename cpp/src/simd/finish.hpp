// What a tile's sums become: residual, scales, y. Include inside an instruction-set unit only.
#pragma once
#include <xsimd/xsimd.hpp>

#include "simd/kernel_table.hpp"
#include "simd/residual.hpp"

namespace seeddelta {
namespace {

inline void load_row_scale(const seeddelta_ctx &ctx, int64_t row0, int64_t rows, float *row_scale) {
    for (int64_t i = 0; i < rows; ++i) {
        row_scale[i] =
            ctx.row_scale_f16 != nullptr ? half_to_float(ctx.row_scale_f16[row0 + i]) : ctx.row_scale_f32[row0 + i];
    }
}

// Adds the residual, applies the scales and writes one token's rows of a tile.
template <class Arch>
inline bool finish_tile(const seeddelta_ctx &ctx, int64_t row0, int64_t rows, const float *row_scale, const float *acc,
                        const float *x, const float *p, float *y) {
    alignas(64) float residual[kTileRows] = {};
    if (ctx.scheme != ResidualScheme::none) {
        residual_rows<Arch>(ctx, row0, rows, x, p, residual);
    }
    alignas(64) float out[kTileRows];
    uint32_t worst = 0;
    for (int64_t i = 0; i < kTileRows; ++i) {
        out[i] = row_scale[i] * (acc[i] * ctx.base_scale + residual[i]);
    }
    for (int64_t i = 0; i < kTileRows; ++i) {
        const uint32_t exponent = __builtin_bit_cast(uint32_t, out[i]) & 0x7F800000U;
        worst = exponent > worst ? exponent : worst;
    }
    for (int64_t i = 0; i < rows; ++i) {
        y[row0 + i] = out[i];
    }
    return worst != 0x7F800000U;
}

} // namespace
} // namespace seeddelta
