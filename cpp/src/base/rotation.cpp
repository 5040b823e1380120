#include "base/rotation.hpp"

namespace seeddelta {

static void flip_signs(float *row, int64_t n, uint64_t seed) {
    for (int64_t i = 0; i < n; ++i) {
        if ((rotation_sign_word(seed, static_cast<uint64_t>(i / 64)) >> (i % 64)) & 1U) {
            row[i] = -row[i];
        }
    }
}

static void hadamard(float *row, int64_t n, uint32_t block) {
    const float scale = rotation_scale(block);
    for (int64_t start = 0; start < n; start += block) {
        float *x = row + start;
        for (uint32_t stride = 1; stride < block; stride *= 2) {
            for (uint32_t i = 0; i < block; i += 2 * stride) {
                for (uint32_t j = i; j < i + stride; ++j) {
                    const float a = x[j];
                    const float b = x[j + stride];
                    x[j] = a + b;
                    x[j + stride] = a - b;
                }
            }
        }
        for (uint32_t i = 0; i < block; ++i) {
            x[i] *= scale;
        }
    }
}

void rotate(float *row, int64_t n, uint32_t block, uint64_t seed) {
    flip_signs(row, n, seed);
    hadamard(row, n, block);
}

void rotate_back(float *row, int64_t n, uint32_t block, uint64_t seed) {
    hadamard(row, n, block);
    flip_signs(row, n, seed);
}

} // namespace seeddelta
