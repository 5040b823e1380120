// What a tile's sums become: residual, scales, y. Include inside an instruction-set unit only.
#pragma once
#include <xsimd/xsimd.hpp>

#include "simd/kernel_table.hpp"
#include "simd/residual.hpp"

namespace seeddelta {
namespace {

inline void load_row_scale(const seeddelta_ctx &ctx, int64_t row0, int64_t rows, float *row_scale) {
    if (rows == kTileRows && ctx.row_scale_f16 != nullptr) { // as a rule: a known length becomes vectors
        for (int64_t i = 0; i < kTileRows; ++i) {
            row_scale[i] = half_to_float(ctx.row_scale_f16[row0 + i]);
        }
        return;
    }
    for (int64_t i = 0; i < rows; ++i) {
        row_scale[i] =
            ctx.row_scale_f16 != nullptr ? half_to_float(ctx.row_scale_f16[row0 + i]) : ctx.row_scale_f32[row0 + i];
    }
}

// One token's rows of a whole tile without residual. The 0 stands for it: it makes -0 to 0.
inline bool finish_whole_tile(float base_scale, const float *row_scale, const float *acc, float *y) {
    alignas(64) float out[kTileRows];
    uint32_t worst = 0;
    for (int64_t i = 0; i < kTileRows; ++i) {
        out[i] = row_scale[i] * (acc[i] * base_scale + 0.0F);
    }
    for (int64_t i = 0; i < kTileRows; ++i) {
        const uint32_t exponent = __builtin_bit_cast(uint32_t, out[i]) & 0x7F800000U;
        worst = exponent > worst ? exponent : worst;
    }
    __builtin_memcpy(y, out, sizeof(out));
    return worst != 0x7F800000U;
}

// Adds the residual, applies the scales and writes one token's rows of a tile.
template <class Arch>
inline bool finish_tile(const seeddelta_ctx &ctx, int64_t row0, int64_t rows, const float *row_scale, const float *acc,
                        const float *x, const float *p, float *y) {
    if (ctx.scheme == ResidualScheme::none && rows == kTileRows) {
        return finish_whole_tile(ctx.base_scale, row_scale, acc, y + row0);
    }
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
