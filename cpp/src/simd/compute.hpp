// The product over a range of row tiles, for any instruction set. Include inside an instruction-set unit only.
// `Tile` decodes a trellis tile into its own panel layout and multiplies panels by tokens, or up to kTiles tiles' codes
// by one token; `Tile::dot64` multiplies 64 unsigned by 64 signed bytes exactly. `LaneOps`
// has the words of lanes.hpp.
#pragma once
#include "format/prng_block.hpp"
#include "format/trellis.hpp"
#include "simd/lanes_compute.hpp"
#include "simd/proc_sparse.hpp"

namespace seeddelta {
namespace {

// The biased values (v + 64) of one row of prng_block without gains, [n_in rounded up to kGroup].
inline void prng_row_biased(const seeddelta_ctx &ctx, int64_t row, uint8_t *out) {
    const int64_t words_per_block = ctx.base_block / 8;
    for (int64_t block = 0; block < ctx.base_blocks(); ++block) {
        const uint64_t key = prng_block_key_of(ctx, row, block);
        for (int64_t i = 0; i < words_per_block; ++i) {
            // v + 64 = 2 * (b & 63) + 1 for all eight bytes at once
            const uint64_t word = splitmix64_at(key, static_cast<uint64_t>(i));
            const uint64_t biased = ((word & 0x3F3F3F3F3F3F3F3FULL) << 1) | 0x0101010101010101ULL;
            __builtin_memcpy(out + block * ctx.base_block + i * 8, &biased, 8);
        }
    }
}

// The values with gains, of 16 bits.
inline void prng_row_gains(const seeddelta_ctx &ctx, int64_t row, int16_t *out) {
    for (int64_t block = 0; block < ctx.base_blocks(); ++block) {
        const uint64_t key = prng_block_key_of(ctx, row, block);
        const auto gain = static_cast<int16_t>(ctx.seed_gain[row * ctx.base_blocks() + block]);
        for (int64_t i = 0; i < ctx.base_block / 8; ++i) {
            uint8_t bytes[8];
            const uint64_t word = splitmix64_at(key, static_cast<uint64_t>(i));
            __builtin_memcpy(bytes, &word, 8);
            for (int j = 0; j < 8; ++j) {
                out[block * ctx.base_block + i * 8 + j] =
                    static_cast<int16_t>(static_cast<int16_t>(prng_block_value(bytes[j])) * gain);
            }
        }
    }
}

// 64 values of 16 bits (at most 8064 in size) by 64 of 8 bits: the sum fits 32 bits.
inline int32_t dot64_gains(const int16_t *values, const int8_t *q) {
    int32_t sum = 0;
    for (int i = 0; i < kGroup; ++i) {
        sum += static_cast<int32_t>(values[i]) * static_cast<int16_t>(q[i]);
    }
    return sum;
}

inline void prng_tile_gains(const Activations &a, int64_t rows, const uint8_t *panel, int64_t token, float *acc) {
    const int64_t groups = a.stride / kGroup;
    const int8_t *q = a.q + token * a.stride;
    for (int64_t i = 0; i < rows; ++i) {
        const int16_t *values = reinterpret_cast<const int16_t *>(panel) + i * a.stride;
        float sum = 0.0F;
        for (int64_t g = 0; g < groups; ++g) {
            sum = sum +
                  static_cast<float>(dot64_gains(values + g * kGroup, q + g * kGroup)) * a.scale[token * groups + g];
        }
        acc[i] = sum;
    }
}

template <class Tile>
inline void prng_tile(const Activations &a, int64_t rows, const uint8_t *panel, int64_t token, float *acc) {
    const int64_t stride = a.stride;
    const int64_t groups = stride / kGroup;
    const int8_t *q = a.q + token * stride;
    for (int64_t i = 0; i < rows; ++i) {
        float sum = 0.0F;
        for (int64_t g = 0; g < groups; ++g) {
            const int32_t dot =
                Tile::dot64(panel + i * stride + g * kGroup, q + g * kGroup) + a.bias[token * groups + g];
            sum = sum + static_cast<float>(dot) * a.scale[token * groups + g];
        }
        acc[i] = sum;
    }
}

template <class Arch, class Tile, class LaneOps, class LaneMany = LaneOps>
bool compute_simd(const seeddelta_ctx &ctx, const Activations &a, int64_t tile_begin, int64_t tile_end, uint8_t *panel,
                  float *y, int64_t y_stride) {
    if (ctx.base == BaseKind::lanes) {
        return lanes_compute<Arch, LaneOps, LaneMany>(ctx, a, tile_begin, tile_end, panel, y, y_stride);
    }
    bool finite = true;
    constexpr int64_t block = Tile::kTokens;
    static_assert(Tile::kTiles <= block);
    alignas(64) float acc[block][kTileRows];
    int64_t nth = 0; // with one token: of the tiles in acc
    for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
        const int64_t row0 = tile * kTileRows;
        const int64_t rows = ctx.n_out - row0 < kTileRows ? ctx.n_out - row0 : kTileRows;
        alignas(64) float row_scale[kTileRows] = {};
        load_row_scale(ctx, row0, rows, row_scale);
        if (ctx.scheme == ResidualScheme::proc_sparse) {
            finite &= proc_tile<Arch>(ctx, a, row0, rows, row_scale, panel, y, y_stride);
            continue;
        }
        if (ctx.base == BaseKind::prng_block) {
            for (int64_t i = 0; i < rows; ++i) {
                if (ctx.seed_gain != nullptr) {
                    prng_row_gains(ctx, row0 + i, reinterpret_cast<int16_t *>(panel) + i * a.stride);
                } else {
                    prng_row_biased(ctx, row0 + i, panel + i * a.stride);
                }
            }
        } else if (ctx.base == BaseKind::trellis && a.n_tokens > 1) {
            Tile::decode(ctx, tile, panel);
        }
        for (int64_t token = 0; token < a.n_tokens; token += block) {
            const int64_t count = a.n_tokens - token < block ? a.n_tokens - token : block;
            if (ctx.base == BaseKind::trellis) {
                if (a.n_tokens == 1) {
                    nth = (tile - tile_begin) % Tile::kTiles;
                    if (nth == 0) {
                        Tile::multiply_codes(ctx, tile, tile_end - tile, a, panel, acc);
                    }
                } else {
                    Tile::multiply_panel(ctx, a, panel, token, count, acc);
                }
            } else if (ctx.base == BaseKind::prng_block) {
                for (int64_t t = 0; t < count; ++t) {
                    if (ctx.seed_gain != nullptr) {
                        prng_tile_gains(a, rows, panel, token + t, acc[t]);
                    } else {
                        prng_tile<Tile>(a, rows, panel, token + t, acc[t]);
                    }
                }
            } else {
                __builtin_memset(acc, 0, sizeof(acc));
                for (int64_t t = 0; ctx.base == BaseKind::fht_struct && t < count; ++t) {
                    __builtin_memcpy(acc[t], y + a.place(token + t) * y_stride + row0,
                                     static_cast<size_t>(rows) * sizeof(float));
                }
            }
            for (int64_t t = 0; t < count; ++t) {
                const float *x = a.x == nullptr ? nullptr : a.x + (token + t) * a.x_stride; // there for a residual
                finite &= finish_tile<Arch>(ctx, row0, rows, row_scale, acc[nth + t], x,
                                            a.p + (token + t) * ctx.dictionary_size, y + a.place(token + t) * y_stride);
            }
        }
    }
    return finite;
}

} // namespace
} // namespace seeddelta
