// The product over a range of row tiles, for any instruction set. Include inside an instruction-set unit only.
// `LaneOps` has the words of lanes.hpp.
#pragma once
#include "simd/kinds.hpp"
#include "simd/lanes_compute.hpp"
#include "simd/proc_sparse.hpp"

namespace seeddelta {
namespace {

// Products with any other base, or none.
template <class Arch>
inline bool other_compute(const seeddelta_ctx &ctx, const Activations &a, int64_t tile_begin, int64_t tile_end,
                          uint8_t *panel, float *y, int64_t y_stride) {
    bool finite = true;
    Exponents<Arch> exponents;
    constexpr int64_t block = 8;
    alignas(64) float acc[block][kTileRows] = {};
    for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
        const int64_t row0 = tile * kTileRows;
        const int64_t rows = ctx.n_out - row0 < kTileRows ? ctx.n_out - row0 : kTileRows;
        alignas(64) float row_scale[kTileRows] = {};
        load_row_scale(ctx, row0, rows, row_scale);
        if (ctx.scheme == ResidualScheme::proc_sparse) {
            finite &= proc_tile<Arch>(ctx, a, row0, rows, row_scale, panel, y, y_stride);
            continue;
        }
        for (int64_t token = 0; token < a.n_tokens; token += block) {
            const int64_t count = a.n_tokens - token < block ? a.n_tokens - token : block;
            Kinds::base(ctx.base, [&]<class K>() {
                SimdOf<K, Arch>::tile(ctx, a, row0, rows, panel, token, count, y, y_stride, acc);
            });
            finish_tokens<Arch>(ctx, a, row0, rows, row_scale, token, count, acc, y, y_stride, exponents);
        }
    }
    return finite && exponents.finite();
}

template <class Arch, class LaneOps>
bool compute_simd(const seeddelta_ctx &ctx, const Activations &a, int64_t tile_begin, int64_t tile_end, uint8_t *panel,
                  float *y, int64_t y_stride) {
    if (ctx.base == BaseKind::lanes) {
        return lanes_compute<Arch, LaneOps>(ctx, a, tile_begin, tile_end, panel, y, y_stride);
    }
    return other_compute<Arch>(ctx, a, tile_begin, tile_end, panel, y, y_stride);
}

} // namespace
} // namespace seeddelta
