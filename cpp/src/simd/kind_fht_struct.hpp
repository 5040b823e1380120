// The product with base kind fht_struct, for any xsimd architecture; the definition is fht_struct_block. Include inside
// an instruction-set unit only.
#pragma once
#include "kinds/fht_struct/kind.hpp"
#include "simd/activations.hpp"
#include "simd/kind.hpp"

namespace seeddelta {
namespace {

template <class Arch>
inline void fht_struct_simd(uint64_t seed, int64_t block, int64_t n_in, const float *x, float *out, float *scratch) {
    const int64_t d = fht_struct_size(n_in);
    const uint64_t block_seed = fht_struct_seed(seed, block);
    const FhtPermutation permutation(block_seed, d);
    flip_signs<Arch>(x, scratch, n_in, block_seed);
    __builtin_memset(scratch + n_in, 0, static_cast<size_t>(d - n_in) * sizeof(float));
    hadamard_simd<Arch>(scratch, d, 1);
    for (int64_t word = 0; word < d / 8; ++word) {
        const uint64_t bytes = fht_struct_gauss_word(block_seed, d, word);
        for (int i = 0; i < 8; ++i) {
            const auto k = static_cast<uint32_t>(8 * word + i);
            out[k] =
                static_cast<float>(fht_struct_gauss(static_cast<uint8_t>(bytes >> (8 * i)))) * scratch[permutation(k)];
        }
    }
    hadamard_simd<Arch>(out, d, 1);
}

template <class Arch>
struct SimdOf<kinds::fht_struct, Arch> {
    static void tile(const seeddelta_ctx &, const Activations &a, int64_t row0, int64_t rows, uint8_t *, int64_t token,
                     int64_t count, const float *y, int64_t y_stride, float (*acc)[kTileRows]) {
        for (int64_t t = 0; t < count; ++t) {
            __builtin_memcpy(acc[t], y + a.place(token + t) * y_stride + row0,
                             static_cast<size_t>(rows) * sizeof(float));
        }
    }

    static void prepare(const seeddelta_ctx &ctx, const PrepareWork &work, float *scratch) {
        kinds::fht_struct::prepare_by(ctx, work, scratch,
                                      [](auto... arguments) { fht_struct_simd<Arch>(arguments...); });
    }
};

} // namespace
} // namespace seeddelta
