// The product over a range of row tiles, for any instruction set. Include inside an instruction-set unit only.
// `Tile` decodes a trellis tile into its own panel layout and multiplies panels by tokens, or up to kTiles tiles' codes
// by one token; `Tile::dot64` multiplies 64 unsigned by 64 signed bytes exactly. `LaneOps`
// has the words of lanes.hpp.
#pragma once
#include "format/trellis.hpp"
#include "simd/kinds/simd.hpp"
#include "simd/lanes_compute.hpp"
#include "simd/proc_sparse.hpp"

namespace seeddelta {
namespace {

// Products with a trellis.
template <class Arch, class Tile>
inline bool trellis_compute(const seeddelta_ctx &ctx, const Activations &a, int64_t tile_begin, int64_t tile_end,
                            uint8_t *panel, float *y, int64_t y_stride) {
    Exponents<Arch> exponents;
    constexpr int64_t block = Tile::kTokens;
    static_assert(Tile::kTiles <= block);
    alignas(64) float acc[block][kTileRows];
    int64_t nth = 0; // with one token: of the tiles in acc
    for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
        const int64_t row0 = tile * kTileRows;
        const int64_t rows = ctx.n_out - row0 < kTileRows ? ctx.n_out - row0 : kTileRows;
        alignas(64) float row_scale[kTileRows] = {};
        load_row_scale(ctx, row0, rows, row_scale);
        if (a.n_tokens > 1) {
            Tile::decode(ctx, tile, panel);
        }
        for (int64_t token = 0; token < a.n_tokens; token += block) {
            const int64_t count = a.n_tokens - token < block ? a.n_tokens - token : block;
            if (a.n_tokens == 1) {
                nth = (tile - tile_begin) % Tile::kTiles;
                if (nth == 0) {
                    Tile::multiply_codes(ctx, tile, tile_end - tile, a, panel, acc);
                }
            } else {
                Tile::multiply_panel(ctx, a, panel, token, count, acc);
            }
            finish_tokens<Arch>(ctx, a, row0, rows, row_scale, token, count, acc + nth, y, y_stride, exponents);
        }
    }
    return exponents.finite();
}

// Products with any other base, or none.
template <class Arch, class Tile>
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
                SimdOf<K, Arch>::template tile<Tile>(ctx, a, row0, rows, panel, token, count, y, y_stride, acc);
            });
            finish_tokens<Arch>(ctx, a, row0, rows, row_scale, token, count, acc, y, y_stride, exponents);
        }
    }
    return finite && exponents.finite();
}

template <class Arch, class Tile, class LaneOps>
bool compute_simd(const seeddelta_ctx &ctx, const Activations &a, int64_t tile_begin, int64_t tile_end, uint8_t *panel,
                  float *y, int64_t y_stride) {
    if (ctx.base == BaseKind::lanes) {
        return lanes_compute<Arch, LaneOps>(ctx, a, tile_begin, tile_end, panel, y, y_stride);
    }
    if (ctx.base == BaseKind::trellis) {
        return trellis_compute<Arch, Tile>(ctx, a, tile_begin, tile_end, panel, y, y_stride);
    }
    return other_compute<Arch, Tile>(ctx, a, tile_begin, tile_end, panel, y, y_stride);
}

} // namespace
} // namespace seeddelta
