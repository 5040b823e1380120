// Rotation and quantisation of activations, for any xsimd architecture. Include inside an instruction-set unit only.
#pragma once
#include <xsimd/xsimd.hpp>

#include "format/rotation.hpp"
#include "format/trellis.hpp"
#include "simd/hadamard.hpp"
#include "simd/kernel_table.hpp"

namespace seeddelta {
namespace {

// Flips the signs of the floats whose bits in `word` are set.
inline void flip_some(float *x, uint64_t word, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
        x[i] = (word >> i & 1) != 0 ? -x[i] : x[i];
    }
}

template <class Arch>
void flip_signs(float *row, int64_t n, uint64_t seed) {
    using F = xsimd::batch<float, Arch>;
    using U = xsimd::batch<uint32_t, Arch>;
    constexpr int64_t lanes = F::size;
    alignas(64) uint32_t lane_bits[lanes];
    for (int64_t i = 0; i < lanes; ++i) {
        lane_bits[i] = uint32_t{1} << i;
    }
    const U bits = U::load_aligned(lane_bits);
    const U sign(0x80000000U);
    int64_t start = 0;
    for (; start + 64 <= n; start += 64) {
        const uint64_t word = rotation_sign_word(seed, static_cast<uint64_t>(start / 64));
        for (int64_t i = 0; i < 64; i += lanes) {
            float *x = row + start + i;
            const auto negative = (U(static_cast<uint32_t>(word >> i)) & bits) == bits;
            const U own = xsimd::bitwise_cast<uint32_t>(F::load_unaligned(x));
            xsimd::bitwise_cast<float>(own ^ xsimd::select(negative, sign, U(0U))).store_unaligned(x);
        }
    }
    if (start < n) {
        flip_some(row + start, rotation_sign_word(seed, static_cast<uint64_t>(start / 64)), n - start);
    }
}

template <class Arch>
void transform(float *row, int64_t n, uint32_t block) {
    using F = xsimd::batch<float, Arch>;
    constexpr int64_t lanes = F::size;
    hadamard_simd<Arch>(row, n, n / block);
    const float scale = rotation_scale(block);
    int64_t i = 0;
    for (; i + lanes <= n; i += lanes) {
        (F::load_unaligned(row + i) * F(scale)).store_unaligned(row + i);
    }
    for (; i < n; ++i) {
        row[i] *= scale;
    }
}

template <class Arch>
void rotate_simd(float *row, int64_t n, uint32_t block, uint64_t seed) {
    flip_signs<Arch>(row, n, seed);
    transform<Arch>(row, n, block);
}

template <class Arch>
void rotate_back_simd(float *row, int64_t n, uint32_t block, uint64_t seed) {
    transform<Arch>(row, n, block);
    flip_signs<Arch>(row, n, seed);
}

// xsimd's own takes twice the instructions for more than four lanes.
template <class I>
SEEDDELTA_INLINE int32_t largest_lane(I v) {
    using Four = typename xsimd::make_sized_batch<int32_t, 4>::type;
    alignas(64) int32_t all[I::size];
    v.store_aligned(all);
    Four largest = Four::load_aligned(all);
    for (size_t i = 4; i < I::size; i += 4) {
        largest = xsimd::max(largest, Four::load_aligned(all + i));
    }
    return xsimd::reduce_max(largest);
}

// One group of kGroup floats. Returns whether all are finite.
template <class Arch>
inline bool quantize_group(const float *x, int8_t *q, float *scale, int32_t *bias) {
    using F = xsimd::batch<float, Arch>;
    using I = xsimd::batch<int32_t, Arch>;
    constexpr int64_t lanes = F::size;
    I largest(0); // of the magnitudes, as integers: their order is that of the floats, and infinity and NaN are last
    for (int64_t i = 0; i < kGroup; i += lanes) {
        largest = xsimd::max(largest, xsimd::bitwise_cast<int32_t>(F::load_unaligned(x + i)) & I(0x7FFFFFFF));
    }
    const int32_t bits = largest_lane(largest);
    const float amax = __builtin_bit_cast(float, bits);
    const bool finite = bits < 0x7F800000;
    if (!finite || amax < 0x1p-100F) {
        for (int64_t i = 0; i < kGroup; ++i) {
            q[i] = 0;
        }
        *scale = 0.0F;
        *bias = 0;
        return finite;
    }
    *scale = amax / 127.0F;
    const F inverse(127.0F / amax);
    alignas(64) int32_t rounded[kGroup];
    for (int64_t i = 0; i < kGroup; i += lanes) {
        xsimd::nearbyint_as_int(F::load_unaligned(x + i) * inverse).store_aligned(rounded + i);
    }
    int32_t total = 0;
    for (int64_t i = 0; i < kGroup; ++i) {
        q[i] = static_cast<int8_t>(rounded[i]);
        total += rounded[i];
    }
    *bias = -kValueBias * total;
    return true;
}

template <class Arch>
bool quantize_simd(const float *x, int64_t n, int8_t *q, float *scale, int32_t *bias) {
    bool finite = true;
    int64_t start = 0;
    for (; start + kGroup <= n; start += kGroup) {
        finite &= quantize_group<Arch>(x + start, q + start, scale++, bias++);
    }
    if (start < n) {
        alignas(64) float tail[kGroup] = {};
        for (int64_t i = start; i < n; ++i) {
            tail[i - start] = x[i];
        }
        finite &= quantize_group<Arch>(tail, q + start, scale, bias);
    }
    return finite;
}

} // namespace
} // namespace seeddelta
