// Rotation and quantisation of activations, for any xsimd architecture. Include inside an instruction-set unit only.
#pragma once
#include <xsimd/xsimd.hpp>

#include "format/activations.hpp"
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

// Of the columns from `column` on, a multiple of a batch: the sign bit where the column's bit of `bytes` is set. Three
// bytes more are read.
template <class Arch>
SEEDDELTA_INLINE xsimd::batch<uint32_t, Arch> sign_bits(const uint8_t *bytes, int64_t column) {
    using U = xsimd::batch<uint32_t, Arch>;
    constexpr size_t lanes = U::size;
    uint32_t word;
    __builtin_memcpy(&word, bytes + column / 8, sizeof(word));
    alignas(64) uint32_t each[lanes];
    if constexpr (lanes >= 8) { // shifts by lane, which narrower instruction sets do not have
        for (size_t i = 0; i < lanes; ++i) {
            each[i] = static_cast<uint32_t>(31 - i);
        }
        return (U(word) << U::load_aligned(each)) & U(0x80000000U);
    } else {
        for (size_t i = 0; i < lanes; ++i) {
            each[i] = uint32_t{1} << i;
        }
        const U bits = U::load_aligned(each);
        return xsimd::select((U(word >> column % 8) & bits) == bits, U(0x80000000U), U(0U));
    }
}

template <class Arch>
void flip_signs(float *row, int64_t n, uint64_t seed) {
    using F = xsimd::batch<float, Arch>;
    constexpr int64_t lanes = F::size;
    int64_t start = 0;
    for (; start + 64 <= n; start += 64) {
        const uint64_t word[2] = {rotation_sign_word(seed, static_cast<uint64_t>(start / 64)), 0};
        for (int64_t i = 0; i < 64; i += lanes) {
            float *x = row + start + i;
            const auto sign = sign_bits<Arch>(reinterpret_cast<const uint8_t *>(word), i);
            xsimd::bitwise_cast<float>(xsimd::bitwise_cast<uint32_t>(F::load_unaligned(x)) ^ sign).store_unaligned(x);
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

template <class I>
SEEDDELTA_INLINE int32_t sum_of_lanes(I v) {
    using Four = typename xsimd::make_sized_batch<int32_t, 4>::type;
    alignas(64) int32_t all[I::size];
    v.store_aligned(all);
    Four sum = Four::load_aligned(all);
    for (size_t i = 4; i < I::size; i += 4) {
        sum += Four::load_aligned(all + i);
    }
    return xsimd::reduce_add(sum);
}

// Stores four registers of integers, of one byte each. By instructions: GCC would go through memory.
template <class Arch>
SEEDDELTA_INLINE void store_bytes(int8_t *q, const xsimd::batch<int32_t, Arch> *v) {
    constexpr size_t lanes = xsimd::batch<int32_t, Arch>::size;
#if defined(__AVX512F__)
    if constexpr (lanes == 16) {
        unrolled<4>([&](int k) SEEDDELTA_INLINE_LAMBDA {
            _mm_storeu_si128(reinterpret_cast<__m128i *>(q) + k, _mm512_cvtepi32_epi8(v[k]));
        });
    }
#endif
#if defined(__AVX2__)
    if constexpr (lanes == 8) {
        const __m256i all = _mm256_packs_epi16(_mm256_packs_epi32(v[0], v[1]), _mm256_packs_epi32(v[2], v[3]));
        const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
        _mm256_storeu_si256(reinterpret_cast<__m256i *>(q), _mm256_permutevar8x32_epi32(all, order));
    }
#endif
    if constexpr (lanes == 4) {
#if defined(__ARM_NEON)
        vst1q_s8(q, vcombine_s8(vmovn_s16(vcombine_s16(vmovn_s32(v[0]), vmovn_s32(v[1]))),
                                vmovn_s16(vcombine_s16(vmovn_s32(v[2]), vmovn_s32(v[3])))));
#else
        _mm_storeu_si128(reinterpret_cast<__m128i *>(q),
                         _mm_packs_epi16(_mm_packs_epi32(v[0], v[1]), _mm_packs_epi32(v[2], v[3])));
#endif
    }
}

// The sums of the first and the second four floats of each eight of two registers, a and b.
template <class Arch>
SEEDDELTA_INLINE xsimd::batch<float, Arch> add_halves(xsimd::batch<float, Arch> a, xsimd::batch<float, Arch> b) {
#if defined(__AVX512F__)
    if constexpr (xsimd::batch<float, Arch>::size == 16) {
        return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xDD));
    }
#endif
#if defined(__AVX2__)
    if constexpr (xsimd::batch<float, Arch>::size == 8) {
        return _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
    }
#endif
    return a + b;
}

// `Groups` of kGroup floats with one scale. Returns whether all are finite.
template <class Arch, int64_t Groups>
inline bool quantize_groups(const float *x, int8_t *q, float *scale, int32_t *bias) {
    using F = xsimd::batch<float, Arch>;
    using I = xsimd::batch<int32_t, Arch>;
    constexpr int64_t lanes = F::size;
    constexpr auto swap = xsimd::make_batch_constant<uint32_t, SwapAt<1>, Arch>();
    const auto magnitude = [](F v) SEEDDELTA_INLINE_LAMBDA { return xsimd::bitwise_cast<int32_t>(v) & I(0x7FFFFFFF); };
    const auto four = [](F a, F b) SEEDDELTA_INLINE_LAMBDA {
        const F two = add_halves<Arch>(a, b);
        return two + xsimd::swizzle(two, swap);
    };
    I largest(0); // of the magnitudes, as integers: their order is that of the floats, and infinity and NaN are last
    I fours(0);   // largest_four
    for (int64_t i = 0; i < Groups * kGroup; i += 2 * lanes) {
        const F a = F::load_unaligned(x + i);
        const F b = F::load_unaligned(x + i + lanes);
        largest = xsimd::max(largest, xsimd::max(magnitude(a), magnitude(b)));
        const F magnitudes = four(xsimd::bitwise_cast<float>(magnitude(a)), xsimd::bitwise_cast<float>(magnitude(b)));
        const F sums = xsimd::bitwise_cast<float>(magnitude(four(a, b)));
        fours = xsimd::max(fours, xsimd::bitwise_cast<int32_t>(magnitudes + sums));
    }
    const F share = xsimd::bitwise_cast<float>(fours) * F(kFourShare);
    const int32_t bits = largest_lane(xsimd::max(largest, xsimd::bitwise_cast<int32_t>(share)));
    const float amax = __builtin_bit_cast(float, bits);
    const bool finite = bits < 0x7F800000;
    if (!finite || amax < 0x1p-100F) {
        __builtin_memset(q, 0, Groups * kGroup);
        for (int64_t g = 0; g < Groups; ++g) {
            scale[g] = 0.0F;
            bias[g] = 0;
        }
        return finite;
    }
    const F inverse(127.0F / amax);
    for (int64_t g = 0; g < Groups; ++g) {
        I sum(0);
        for (int64_t i = g * kGroup; i < (g + 1) * kGroup; i += 4 * lanes) {
            I rounded[4];
            for (int64_t k = 0; k < 4; ++k) {
                rounded[k] = xsimd::nearbyint_as_int(F::load_unaligned(x + i + k * lanes) * inverse);
            }
            sum += (rounded[0] + rounded[1]) + (rounded[2] + rounded[3]);
            store_bytes<Arch>(q + i, rounded);
        }
        scale[g] = amax / 127.0F;
        bias[g] = -kValueBias * sum_of_lanes(sum);
    }
    return true;
}

template <class Arch, int64_t Groups>
bool quantize_together(const float *x, int64_t n, int8_t *q, float *scale, int32_t *bias) {
    bool finite = true;
    for (; n >= Groups * kGroup; n -= Groups * kGroup) {
        finite &= quantize_groups<Arch, Groups>(x, q, scale, bias);
        x += Groups * kGroup;
        q += Groups * kGroup;
        scale += Groups;
        bias += Groups;
    }
    if (n > 0) {
        alignas(64) float tail[Groups * kGroup] = {};
        __builtin_memcpy(tail, x, static_cast<size_t>(n) * sizeof(float));
        finite &= n > kGroup ? quantize_groups<Arch, Groups>(tail, q, scale, bias)
                             : quantize_groups<Arch, 1>(tail, q, scale, bias);
    }
    return finite;
}

template <class Arch>
bool quantize_simd(const float *x, int64_t n, int64_t scale_groups, int8_t *q, float *scale, int32_t *bias) {
    static_assert(kScaleGroups == 2);
    return scale_groups == 1 ? quantize_together<Arch, 1>(x, n, q, scale, bias)
                             : quantize_together<Arch, 2>(x, n, q, scale, bias);
}

} // namespace
} // namespace seeddelta
