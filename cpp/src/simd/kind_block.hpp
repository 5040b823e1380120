// block for any xsimd architecture. Include inside an instruction-set unit only.
#pragma once
#include "kinds/block/kind.hpp"
#include "simd/entries.hpp"
#include "simd/kind.hpp"

namespace seeddelta {
namespace {

template <class Arch, bool HalfValues>
inline float block_row(const seeddelta_ctx &ctx, int64_t row, const float *x) {
    const int64_t block = ctx.residual_block;
    PartialSums<Arch> total;
    for (int64_t entry = row * ctx.residual_size; entry < (row + 1) * ctx.residual_size; ++entry) {
        const int64_t column = ctx.residual_index[entry] * block;
        const int64_t count = block_columns(ctx, column);
        PartialSums<Arch> partial;
        for (int64_t start = 0; start < count; start += kSumLanes) {
            const int64_t at = entry * block + start;
            alignas(64) float value[kSumLanes];
            for (int64_t i = 0; i < kSumLanes; ++i) {
                value[i] = HalfValues ? half_to_float(ctx.residual_vals_f16[at + i])
                                      : static_cast<float>(ctx.residual_vals_i8[at + i]);
            }
            const float *in = x + column + start;
            if (count - start >= kSumLanes) {
                partial.add(value, in);
            } else {
                partial.add_some(count - start, [&](int64_t i) { return value[i] * in[i]; });
            }
        }
        const float scale = HalfValues ? 1.0F : half_to_float(ctx.residual_scale[entry]);
        for (int64_t r = 0; r < total.kRegisters; ++r) {
            total.sum[r] = total.sum[r] + partial.sum[r] * xsimd::batch<float, Arch>(scale);
        }
    }
    return total.reduce();
}

template <class Arch>
struct SimdOf<kinds::block, Arch> {
    static float dot(const seeddelta_ctx &ctx, int64_t row, const float *x, const float *) {
        return ctx.residual_vals_f16 != nullptr ? block_row<Arch, true>(ctx, row, x)
                                                : block_row<Arch, false>(ctx, row, x);
    }
};

} // namespace
} // namespace seeddelta
