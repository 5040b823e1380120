#include "format/rotation.hpp"

namespace seeddelta {

static void flip_signs(const float *x, float *out, int64_t n, uint64_t seed) {
    for (int64_t begin = 0; begin < n; begin += 64) {
        const uint64_t word = rotation_sign_word(seed, static_cast<uint64_t>(begin / 64));
        for (int64_t i = begin; i < n && i < begin + 64; ++i) {
            out[i] = (word >> (i - begin)) & 1U ? -x[i] : x[i];
        }
    }
}

static void hadamard(float *row, int64_t n, uint32_t block) {
    const int64_t g = n / block;
    for (int64_t stride = g; stride < n; stride *= 2) {
        for (int64_t start = 0; start < n; start += 2 * stride) {
            for (int64_t j = start; j < start + stride; ++j) {
                const float a = row[j];
                const float b = row[j + stride];
                row[j] = a + b;
                row[j + stride] = a - b;
            }
        }
    }
    const float scale = rotation_scale(block);
    for (int64_t i = 0; i < n; ++i) {
        row[i] *= scale;
    }
}

void rotate(const float *x, float *out, int64_t n, uint32_t block, uint64_t seed) {
    flip_signs(x, out, n, seed);
    hadamard(out, n, block);
}

void rotate_back(float *row, int64_t n, uint32_t block, uint64_t seed) {
    hadamard(row, n, block);
    flip_signs(row, row, n, seed);
}

} // namespace seeddelta
