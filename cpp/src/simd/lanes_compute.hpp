// Base lanes over a range of row tiles. Include inside an instruction-set unit only.
#pragma once
#include "simd/finish.hpp"
#include "simd/lanes_many.hpp"

namespace seeddelta {
namespace {

// Applies residual and scales to one tile's sums of `count` tokens.
template <class Arch>
inline void finish_lanes(const seeddelta_ctx &ctx, const Activations &a, int64_t tile, int64_t first, int64_t count,
                         const float (*acc)[kTileRows], float *y, int64_t y_stride, Exponents<Arch> &exponents) {
    const int64_t row0 = tile * kTileRows;
    const int64_t rows = ctx.n_out - row0 < kTileRows ? ctx.n_out - row0 : kTileRows;
    alignas(64) float row_scale[kTileRows] = {};
    load_row_scale(ctx, row0, rows, row_scale);
    finish_tokens<Arch>(ctx, a, row0, rows, row_scale, first, count, acc, y, y_stride, exponents);
}

// All tokens at once: their activations are packed once for the tiles of a call.
template <class Arch, class Ops>
bool lanes_compute_many(const seeddelta_ctx &ctx, const Activations &a, int64_t tile_begin, int64_t tile_end,
                        uint8_t *scratch, float *y, int64_t y_stride) {
    using P = LanePanel<Ops>;
    const int64_t groups = a.stride / kGroup;
    for (int64_t token = 0; token < a.n_tokens && !a.packed; token += P::kBlock) {
        TokenBatch::of(scratch, groups, token / P::kBlock).pack(a, token);
    }
    Exponents<Arch> exponents;
    const uint8_t *codes = ctx.codes + tile_begin * ctx.tile_bytes();
    for (int64_t tile = tile_begin; tile < tile_end; ++tile, codes += ctx.tile_bytes()) {
        with_pattern(*ctx.lane_code,
                     [&]<class Pattern>() { P::template tile<Pattern>(ctx, codes, a.n_tokens, groups, scratch); });
        for (int64_t token = 0; token < a.n_tokens; token += P::kBlock) {
            const int64_t count = a.n_tokens - token < P::kBlock ? a.n_tokens - token : P::kBlock;
            const auto *total =
                reinterpret_cast<const float(*)[kTileRows]>(TokenBatch::of(scratch, groups, token / P::kBlock).total);
            finish_lanes<Arch>(ctx, a, tile, token, count, total, y, y_stride, exponents);
        }
    }
    return exponents.finite();
}

template <class Arch, class Ops>
bool lanes_compute(const seeddelta_ctx &ctx, const Activations &a, int64_t tile_begin, int64_t tile_end, uint8_t *panel,
                   float *y, int64_t y_stride) {
    using L = LaneTile<Ops>;
    if (a.n_tokens > Ops::kDirect) {
        return lanes_compute_many<Arch, Ops>(ctx, a, tile_begin, tile_end, panel, y, y_stride);
    }
    Exponents<Arch> exponents;
    alignas(64) float acc[L::kTiles * L::kTokens][kTileRows];
    const int64_t together = L::tiles_for(a.n_tokens);
    const TokenBatch block = TokenBatch::of(panel, a.stride / kGroup, 0);
    if (L::packs(a.n_tokens) && !a.packed) {
        block.pack(a, 0);
    }
    int64_t tile = tile_begin;
    while (tile < tile_end) {
        const int64_t count = tile + together <= tile_end ? together : 1;
        prefetch_row_scale(ctx, tile * kTileRows);
        L::multiply(ctx, ctx.codes + tile * ctx.tile_bytes(), a, block, count, acc);
        for (int64_t i = 0; i < count; ++i, ++tile) {
            finish_lanes<Arch>(ctx, a, tile, 0, a.n_tokens, acc + i * L::kTokens, y, y_stride, exponents);
        }
    }
    return exponents.finite();
}

} // namespace
} // namespace seeddelta
