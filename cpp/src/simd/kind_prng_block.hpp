// Products with prng_block for any xsimd architecture. Include inside an instruction-set unit only.
#pragma once
#include "kinds/prng_block/kind.hpp"
#include "simd/kind.hpp"

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

// 64 values (of 16 bits at most 8064 in size, or biased bytes) by 64 of 8 bits: the sum fits 32 bits.
template <class V>
inline int32_t dot64(const V *values, const int8_t *q) {
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
            sum = sum + static_cast<float>(dot64(values + g * kGroup, q + g * kGroup)) * a.scale[token * groups + g];
        }
        acc[i] = sum;
    }
}

inline void prng_tile(const Activations &a, int64_t rows, const uint8_t *panel, int64_t token, float *acc) {
    const int64_t stride = a.stride;
    const int64_t groups = stride / kGroup;
    const int8_t *q = a.q + token * stride;
    for (int64_t i = 0; i < rows; ++i) {
        float sum = 0.0F;
        for (int64_t g = 0; g < groups; ++g) {
            const int32_t dot = dot64(panel + i * stride + g * kGroup, q + g * kGroup) + a.bias[token * groups + g];
            sum = sum + static_cast<float>(dot) * a.scale[token * groups + g];
        }
        acc[i] = sum;
    }
}

template <class Arch>
struct SimdOf<kinds::prng_block, Arch> {
    static void tile(const seeddelta_ctx &ctx, const Activations &a, int64_t row0, int64_t rows, uint8_t *panel,
                     int64_t token, int64_t count, const float *, int64_t, float (*acc)[kTileRows]) {
        for (int64_t i = 0; token == 0 && i < rows; ++i) {
            if (ctx.seed_gain != nullptr) {
                prng_row_gains(ctx, row0 + i, reinterpret_cast<int16_t *>(panel) + i * a.stride);
            } else {
                prng_row_biased(ctx, row0 + i, panel + i * a.stride);
            }
        }
        for (int64_t t = 0; t < count; ++t) {
            if (ctx.seed_gain != nullptr) {
                prng_tile_gains(a, rows, panel, token + t, acc[t]);
            } else {
                prng_tile(a, rows, panel, token + t, acc[t]);
            }
        }
    }
};

} // namespace
} // namespace seeddelta
