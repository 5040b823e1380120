// Rotation and quantisation of activations, for any xsimd architecture. Include inside an instruction-set unit only.
#pragma once
#include <xsimd/xsimd.hpp>

#include "base/rotation.hpp"
#include "kernels/kernel_table.hpp"

namespace seeddelta {
namespace {

template <unsigned Stride>
struct SwapLanes {
    static constexpr unsigned get(unsigned i, unsigned) { return i ^ Stride; }
};

template <unsigned Stride>
struct SecondNegative {
    static constexpr uint32_t get(unsigned i, unsigned) { return (i & Stride) != 0 ? 0x80000000U : 0U; }
};

// One butterfly stage inside a register: lanes i and i ^ Stride become (a + b, a - b).
template <class Arch, unsigned Stride>
inline __attribute__((always_inline)) xsimd::batch<float, Arch> butterfly(xsimd::batch<float, Arch> x) {
    const auto swapped = xsimd::swizzle(x, xsimd::make_batch_constant<uint32_t, SwapLanes<Stride>, Arch>());
    const auto sign = xsimd::make_batch_constant<uint32_t, SecondNegative<Stride>, Arch>().as_batch();
    return swapped + xsimd::bitwise_cast<float>(xsimd::bitwise_cast<uint32_t>(x) ^ sign);
}

// Signs, and the stages that fit one register. n is a multiple of the register's lanes.
template <class Arch>
void signs_and_short_strides(float *row, int64_t n, uint32_t block, uint64_t seed) {
    using F = xsimd::batch<float, Arch>;
    using U = xsimd::batch<uint32_t, Arch>;
    constexpr unsigned lanes = F::size;
    alignas(64) uint32_t lane_numbers[lanes];
    for (unsigned i = 0; i < lanes; ++i) {
        lane_numbers[i] = i;
    }
    const U lane = U::load_aligned(lane_numbers);
    uint64_t word = 0;
    for (int64_t i = 0; i < n; i += lanes) {
        if (i % 64 == 0) {
            word = rotation_sign_word(seed, static_cast<uint64_t>(i / 64));
        }
        const U bits = (U(static_cast<uint32_t>(word >> (i % 64))) >> lane) << 31;
        F x = xsimd::bitwise_cast<float>(xsimd::bitwise_cast<uint32_t>(F::load_unaligned(row + i)) ^ bits);
        x = butterfly<Arch, 1>(x);
        if constexpr (lanes > 2) {
            x = block > 2 ? butterfly<Arch, 2>(x) : x;
        }
        if constexpr (lanes > 4) {
            x = block > 4 ? butterfly<Arch, 4>(x) : x;
        }
        if constexpr (lanes > 8) {
            x = block > 8 ? butterfly<Arch, 8>(x) : x;
        }
        x.store_unaligned(row + i);
    }
}

template <class Arch>
void rotate_simd(float *row, int64_t n, uint32_t block, uint64_t seed) {
    using F = xsimd::batch<float, Arch>;
    constexpr int64_t lanes = F::size;
    if (block < lanes || n % lanes != 0) {
        kernels_scalar().rotate(row, n, block, seed);
        return;
    }
    signs_and_short_strides<Arch>(row, n, block, seed);
    const F scale(rotation_scale(block));
    for (float *x = row; x < row + n; x += block) {
        for (int64_t stride = lanes; stride < block; stride *= 2) {
            for (int64_t i = 0; i < block; i += 2 * stride) {
                for (int64_t j = i; j < i + stride; j += lanes) {
                    const F a = F::load_unaligned(x + j);
                    const F b = F::load_unaligned(x + j + stride);
                    (a + b).store_unaligned(x + j);
                    (a - b).store_unaligned(x + j + stride);
                }
            }
        }
        for (int64_t i = 0; i < block; i += lanes) {
            (F::load_unaligned(x + i) * scale).store_unaligned(x + i);
        }
    }
}

// One group of kGroup floats. Returns whether all are finite.
template <class Arch>
inline bool quantize_group(const float *x, int8_t *q, float *scale, int32_t *sum) {
    using F = xsimd::batch<float, Arch>;
    constexpr int64_t lanes = F::size;
    F largest(0.0F);
    auto in_range = xsimd::batch_bool<float, Arch>(true);
    for (int64_t i = 0; i < kGroup; i += lanes) {
        const F magnitude = xsimd::abs(F::load_unaligned(x + i));
        in_range = in_range && (magnitude <= F(3.4028235e38F)); // false for NaN
        largest = xsimd::max(largest, magnitude);
    }
    const float amax = xsimd::reduce_max(largest);
    const bool finite = xsimd::all(in_range);
    if (!finite || amax < 0x1p-100F) {
        for (int64_t i = 0; i < kGroup; ++i) {
            q[i] = 0;
        }
        *scale = 0.0F;
        *sum = 0;
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
    *sum = total;
    return true;
}

template <class Arch>
bool quantize_simd(const float *x, int64_t n, int8_t *q, float *scale, int32_t *sum) {
    bool finite = true;
    int64_t start = 0;
    for (; start + kGroup <= n; start += kGroup) {
        finite &= quantize_group<Arch>(x + start, q + start, scale++, sum++);
    }
    if (start < n) {
        alignas(64) float tail[kGroup] = {};
        for (int64_t i = start; i < n; ++i) {
            tail[i - start] = x[i];
        }
        finite &= quantize_group<Arch>(tail, q + start, scale, sum);
    }
    return finite;
}

} // namespace
} // namespace seeddelta
