#include "kinds/fht_struct/kind.hpp"

#include <algorithm>
#include <bit>

namespace seeddelta {

static void hadamard(float *row, int64_t d) {
    for (int64_t stride = 1; stride < d; stride *= 2) {
        for (int64_t start = 0; start < d; start += 2 * stride) {
            for (int64_t j = start; j < start + stride; ++j) {
                const float a = row[j];
                const float b = row[j + stride];
                row[j] = a + b;
                row[j + stride] = a - b;
            }
        }
    }
}

static void flip_signs(float *row, int64_t n, uint64_t block_seed) {
    for (int64_t i = 0; i < n; ++i) {
        if (((rotation_sign_word(block_seed, static_cast<uint64_t>(i / 64)) >> (i % 64)) & 1U) != 0) {
            row[i] = -row[i];
        }
    }
}

static float gauss(uint64_t block_seed, int64_t d, int64_t k) {
    const uint64_t word = fht_struct_gauss_word(block_seed, d, k / 8);
    return static_cast<float>(fht_struct_gauss(static_cast<uint8_t>(word >> (8 * (k % 8)))));
}

void fht_struct_block(uint64_t seed, int64_t block, int64_t n_in, const float *x, float *out, float *scratch) {
    const int64_t d = fht_struct_size(n_in);
    const uint64_t block_seed = fht_struct_seed(seed, block);
    const FhtPermutation permutation(block_seed, d);
    std::copy(x, x + n_in, scratch);
    std::fill(scratch + n_in, scratch + d, 0.0F);
    flip_signs(scratch, n_in, block_seed);
    hadamard(scratch, d);
    for (int64_t k = 0; k < d; ++k) {
        out[k] = gauss(block_seed, d, k) * scratch[permutation(static_cast<uint32_t>(k))];
    }
    hadamard(out, d);
}

void fht_struct_row(uint64_t seed, int64_t row, int64_t n_in, float *out, float *scratch) {
    const int64_t d = fht_struct_size(n_in);
    const uint64_t block_seed = fht_struct_seed(seed, row / d);
    const FhtPermutation permutation(block_seed, d);
    // H is symmetric: row i of H G P H B is (B H Pt G H) applied to the i-th unit vector.
    for (int64_t k = 0; k < d; ++k) {
        const bool negative = (std::popcount(static_cast<uint64_t>(row % d) & static_cast<uint64_t>(k)) & 1) != 0;
        const float g = gauss(block_seed, d, k);
        scratch[permutation(static_cast<uint32_t>(k))] = negative ? -g : g;
    }
    hadamard(scratch, d);
    flip_signs(scratch, n_in, block_seed);
    std::copy(scratch, scratch + n_in, out);
}

namespace kinds {

void fht_struct::build(const Builder &b) {
    b.require(b.c.rotation_block <= 1, "fht_struct has no rotation");
}

void fht_struct::row(const seeddelta_ctx &ctx, int64_t row, float *out, float *scratch) {
    fht_struct_row(ctx.base_seed, row, ctx.n_in, out, scratch);
}

void fht_struct::prepare(const seeddelta_ctx &ctx, const PrepareWork &work, float *scratch) {
    prepare_by(ctx, work, scratch, fht_struct_block);
}

} // namespace kinds
} // namespace seeddelta
