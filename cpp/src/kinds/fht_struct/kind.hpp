// Base kind fht_struct: W0 = H G P H B over d = 2^k columns, never stored and never materialized: a product takes two
// fast Hadamard transforms a block of d rows. After Fastfood (Le, Sarlos, Smola, ICML 2013), whose last diagonal S is
// the row scale here. docs/reference/format.md.
#pragma once
#include <cstdint>

#include "format/rotation.hpp"
#include "format/splitmix64.hpp"
#include "kinds/builder.hpp"
#include "kinds/prepare.hpp"

namespace seeddelta {

// d: columns after padding, and rows that share a transform.
static inline int64_t fht_struct_size(int64_t n_in) {
    int64_t d = 64;
    while (d < n_in) {
        d *= 2;
    }
    return d;
}

// Seed of one block of rows: its B are the signs that rotation.hpp makes of it.
static inline uint64_t fht_struct_seed(uint64_t seed, int64_t block) {
    return seed + kGoldenGamma * (static_cast<uint64_t>(block) + 1);
}

// P: a permutation of [0, d) by two rounds of odd multiplication and xor-shift, arithmetic modulo 2^32.
struct FhtPermutation {
    uint32_t first, second, mask, shift;
    // always_inline: a shared symbol must not hold code of one instruction set
    [[gnu::always_inline]] FhtPermutation(uint64_t block_seed, int64_t d) {
        const uint64_t word = splitmix64_at(splitmix64_mix(block_seed), static_cast<uint64_t>(d / 64));
        first = static_cast<uint32_t>(word) | 1U;
        second = static_cast<uint32_t>(word >> 32) | 1U;
        mask = static_cast<uint32_t>(d - 1);
        shift = static_cast<uint32_t>((__builtin_ctzll(static_cast<uint64_t>(d)) + 1) / 2);
    }
    [[gnu::always_inline]] uint32_t operator()(uint32_t i) const {
        uint32_t p = (i * first + second) & mask;
        p ^= p >> shift;
        p = (p * second) & mask;
        return p ^ (p >> shift);
    }
};

// G: the eight values of k = 8 * word .. 8 * word + 7, one byte each, looked up in two tables whose sum is nearly
// Gaussian.
static inline uint64_t fht_struct_gauss_word(uint64_t block_seed, int64_t d, int64_t word) {
    return splitmix64_at(splitmix64_mix(block_seed), static_cast<uint64_t>(d / 64 + 1 + word));
}

// Both ascending and symmetric. Their sum over uniform indices has standard deviation 19.862.
inline constexpr int8_t kGauss1[16] = {-36, -23, -17, -12, -8, -5, -3, -1, 1, 3, 5, 8, 12, 17, 23, 36};
inline constexpr int8_t kGauss2[16] = {-19, -14, -11, -8, -6, -4, -2, -1, 1, 2, 4, 6, 8, 11, 14, 19};

static inline int fht_struct_gauss(uint8_t byte) {
    return kGauss1[byte >> 4] + kGauss2[byte & 15];
}

// Scalar definition: out [d] = W0 x for the rows [block * d, (block + 1) * d); scratch has d floats.
void fht_struct_block(uint64_t seed, int64_t block, int64_t n_in, const float *x, float *out, float *scratch);
// One row of W0, integers in float32, exact for d <= 2^18; scratch has d floats.
void fht_struct_row(uint64_t seed, int64_t row, int64_t n_in, float *out, float *scratch);

namespace kinds {

struct fht_struct {
    static constexpr BaseKind kBase = BaseKind::fht_struct;
    static constexpr const char *kNames[] = {"fht_struct"};
    static constexpr bool kPrepares = true;
    static void build(const Builder &b);
    static std::vector<const char *> names(const seeddelta_ctx &) { return {"fht_struct"}; }
    static int64_t row_floats(const seeddelta_ctx &ctx) { return fht_struct_size(ctx.n_in); }
    static void row(const seeddelta_ctx &ctx, int64_t row, float *out, float *scratch);
    static int64_t prepare_floats(const seeddelta_ctx &ctx) { return 2 * fht_struct_size(ctx.n_in); }
    static void prepare(const seeddelta_ctx &ctx, const PrepareWork &work, float *scratch);

    // The share of a thread, by fht_struct_block or its twin.
    template <class Block>
    static void prepare_by(const seeddelta_ctx &ctx, const PrepareWork &w, float *scratch, Block &&block) {
        const int64_t d = fht_struct_size(ctx.n_in);
        const int64_t blocks = (ctx.n_out + d - 1) / d;
        for (int64_t i = w.n_tokens * blocks * w.ith / w.nth; i < w.n_tokens * blocks * (w.ith + 1) / w.nth; ++i) {
            const int64_t token = i / blocks;
            const int64_t row = i % blocks * d;
            block(ctx.base_seed, i % blocks, ctx.n_in, w.x + token * w.x_stride, scratch, scratch + d);
            const int64_t rows = ctx.n_out - row < d ? ctx.n_out - row : d;
            __builtin_memcpy(w.y + token * w.y_stride + row, scratch, static_cast<size_t>(rows) * sizeof(float));
        }
    }
};

} // namespace kinds
} // namespace seeddelta
