// Base lanes over a range of row tiles. Include inside an instruction-set unit only.
#pragma once
#include <type_traits>

#include "simd/finish.hpp"
#include "simd/lanes.hpp"

namespace seeddelta {
namespace {

// Applies residual and scales to one tile's sums, [count][16] with `acc_stride` tiles between tokens.
template <class Arch>
inline bool finish_tokens(const seeddelta_ctx &ctx, const Activations &a, int64_t tile, int64_t first, int64_t count,
                          const float (*acc)[kTileRows], int64_t acc_stride, float *y, int64_t y_stride) {
    const int64_t row0 = tile * kTileRows;
    const int64_t rows = ctx.n_out - row0 < kTileRows ? ctx.n_out - row0 : kTileRows;
    alignas(64) float row_scale[kTileRows] = {};
    load_row_scale(ctx, row0, rows, row_scale);
    bool finite = true;
    for (int64_t t = 0; t < count; ++t) {
        const float *x = a.x == nullptr ? nullptr : a.x + (first + t) * a.x_stride; // there for a residual
        finite &= finish_tile<Arch>(ctx, row0, rows, row_scale, acc[t * acc_stride], x,
                                    a.p + (first + t) * ctx.dictionary_size, y + (first + t) * y_stride);
    }
    return finite;
}

// Tokens [begin, end) by decoded panels of T tiles, N tokens at a time and the rest one by one.
template <class Arch, class Ops, int T>
inline bool lanes_panels(const seeddelta_ctx &ctx, const Activations &a, int64_t tile, const uint8_t *panel,
                         int64_t panel_stride, float *y, int64_t y_stride) {
    using L = LaneTile<Ops>;
    constexpr int64_t n = Ops::kPanelTokens;
    bool finite = true;
    alignas(64) float acc[n * T][kTileRows];
    for (int64_t token = 0; token < a.n_tokens;) {
        const int64_t count = a.n_tokens - token < n ? 1 : n;
        if (count == n) {
            L::template multiply_panels_n<T, static_cast<int>(n)>(ctx, panel, panel_stride, a, token, acc);
        } else {
            L::template multiply_panels_n<T, 1>(ctx, panel, panel_stride, a, token, acc);
        }
        for (int64_t t = 0; t < T; ++t) {
            finite &= finish_tokens<Arch>(ctx, a, tile + t, token, count, acc + t, T, y, y_stride);
        }
        token += count;
    }
    return finite;
}

template <class Arch, class Ops>
bool lanes_tiles(const seeddelta_ctx &ctx, const Activations &a, int64_t tile_begin, int64_t tile_end, uint8_t *panel,
                 float *y, int64_t y_stride) {
    using L = LaneTile<Ops>;
    bool finite = true;
    const uint8_t *codes = ctx.lane_codes + tile_begin * ctx.tile_bytes();
    if (a.n_tokens <= L::kMost) {
        alignas(64) float acc[L::kMost][kTileRows];
        for (int64_t tile = tile_begin; tile < tile_end; ++tile, codes += ctx.tile_bytes()) {
            L::multiply(ctx, codes, a, 0, a.n_tokens, acc);
            finite &= finish_tokens<Arch>(ctx, a, tile, 0, a.n_tokens, acc, 1, y, y_stride);
        }
        return finite;
    }
    const int64_t panel_stride = (ctx.n_in + kGroup) / kGroup * kGroup * kTileRows;
    for (int64_t tile = tile_begin; tile < tile_end;) {
        const int64_t count = tile_end - tile < Ops::kPanelTiles ? 1 : Ops::kPanelTiles;
        for (int64_t t = 0; t < count; ++t, codes += ctx.tile_bytes()) {
            L::decode(ctx, codes, panel + t * panel_stride);
        }
        finite &= count == 1
                      ? lanes_panels<Arch, Ops, 1>(ctx, a, tile, panel, panel_stride, y, y_stride)
                      : lanes_panels<Arch, Ops, Ops::kPanelTiles>(ctx, a, tile, panel, panel_stride, y, y_stride);
        tile += count;
    }
    return finite;
}

// Ops: void for the scalar definition.
template <class Arch, class Ops>
bool lanes_compute(const seeddelta_ctx &ctx, const Activations &a, int64_t tile_begin, int64_t tile_end,
                   uint8_t *panel, float *y, int64_t y_stride) {
    if constexpr (std::is_void_v<Ops>) { // no look-up of bytes
        return kernels_scalar().compute(ctx, a, tile_begin, tile_end, panel, y, y_stride);
    } else {
        return lanes_tiles<Arch, Ops>(ctx, a, tile_begin, tile_end, panel, y, y_stride);
    }
}

} // namespace
} // namespace seeddelta
