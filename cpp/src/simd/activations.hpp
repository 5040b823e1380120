// Rotation and quantization of activations, for any xsimd architecture. Include inside an instruction-set unit only.
#pragma once
#include <xsimd/xsimd.hpp>

#include "format/activations.hpp"
#include "format/rotation.hpp"
#include "simd/hadamard.hpp"
#include "simd/kernel_table.hpp"

namespace seeddelta {
namespace {

// Copies floats, and flips the signs of those whose bits in `word` are set.
inline void flip_some(const float *x, float *out, uint64_t word, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
        out[i] = (word >> i & 1) != 0 ? -x[i] : x[i];
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

// `out` may be x.
template <class Arch>
void flip_signs(const float *x, float *out, int64_t n, uint64_t seed) {
    using F = xsimd::batch<float, Arch>;
    constexpr int64_t lanes = F::size;
    int64_t start = 0;
    for (; start + 64 <= n; start += 64) {
        const uint64_t word[2] = {rotation_sign_word(seed, static_cast<uint64_t>(start / 64)), 0};
        for (int64_t i = 0; i < 64; i += lanes) {
            const auto sign = sign_bits<Arch>(reinterpret_cast<const uint8_t *>(word), i);
            const auto bits = xsimd::bitwise_cast<uint32_t>(F::load_unaligned(x + start + i));
            xsimd::bitwise_cast<float>(bits ^ sign).store_unaligned(out + start + i);
        }
    }
    if (start < n) {
        flip_some(x + start, out + start, rotation_sign_word(seed, static_cast<uint64_t>(start / 64)), n - start);
    }
}

template <class Arch>
void transform(float *row, int64_t n, uint32_t block) {
    if (block > 1) {
        hadamard_simd<Arch>(row, n, n / block, ScaleFloats{rotation_scale(block)});
    }
}

template <class Arch>
void rotate_simd(const float *x, float *out, int64_t n, uint32_t block, uint64_t seed) {
    flip_signs<Arch>(x, out, n, seed);
    transform<Arch>(out, n, block);
}

template <class Arch>
void rotate_back_simd(float *row, int64_t n, uint32_t block, uint64_t seed) {
    transform<Arch>(row, n, block);
    flip_signs<Arch>(row, row, n, seed);
}

// Of each of four registers one number, of all its lanes: `op` takes two of the same lane. Four at a time: one register
// alone takes nearly as many instructions, each of which waits for the one before.
template <class I, class Op>
SEEDDELTA_INLINE auto across_lanes(const I *v, Op &&op) {
    using Four = typename xsimd::make_sized_batch<int32_t, 4>::type;
    Four of[4];
    for (int k = 0; k < 4; ++k) {
        alignas(64) int32_t all[I::size]; // xsimd has no word for a part of a register; the compiler takes it as one
        v[k].store_aligned(all);
        of[k] = Four::load_aligned(all);
        for (size_t i = 4; i < I::size; i += 4) {
            of[k] = op(of[k], Four::load_aligned(all + i));
        }
    }
    const Four even = op(xsimd::zip_lo(of[0], of[2]), xsimd::zip_hi(of[0], of[2]));
    const Four odd = op(xsimd::zip_lo(of[1], of[3]), xsimd::zip_hi(of[1], of[3]));
    return op(xsimd::zip_lo(even, odd), xsimd::zip_hi(even, odd));
}

// Stores four registers of integers, of one byte each. By instructions: GCC would go through memory.
template <class Arch>
SEEDDELTA_INLINE void store_bytes(int8_t *q, const xsimd::batch<int32_t, Arch> *v) {
    constexpr size_t lanes = xsimd::batch<int32_t, Arch>::size;
#if defined(__AVX512F__)
    if constexpr (lanes == 16) {
        const __m512i all = _mm512_packs_epi16(_mm512_packs_epi32(v[0], v[1]), _mm512_packs_epi32(v[2], v[3]));
        const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
        _mm512_storeu_si512(q, _mm512_permutexvar_epi32(order, all));
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

// The sums of neighbors of two registers, a and b, in any order.
template <class Arch>
SEEDDELTA_INLINE xsimd::batch<float, Arch> add_neighbors(xsimd::batch<float, Arch> a, xsimd::batch<float, Arch> b) {
#if defined(__AVX512F__)
    if constexpr (xsimd::batch<float, Arch>::size == 16) {
        return _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xDD));
    }
#endif
#if defined(__AVX2__)
    if constexpr (xsimd::batch<float, Arch>::size == 8) {
        return _mm256_add_ps(_mm256_shuffle_ps(a, b, 0x88), _mm256_shuffle_ps(a, b, 0xDD));
    }
#endif
#if defined(__ARM_NEON)
    return vpaddq_f32(a, b);
#else
    if constexpr (xsimd::batch<float, Arch>::size == 4) {
        return _mm_add_ps(_mm_shuffle_ps(a, b, 0x88), _mm_shuffle_ps(a, b, 0xDD));
    }
#endif
}

// The largest magnitude of `Groups` of kGroup floats with one scale, or what it would have to be for their dot groups
// (largest_four), as integers in lanes: their order is that of the floats, and infinity and NaN are last.
template <class Arch, int64_t Groups>
SEEDDELTA_INLINE xsimd::batch<int32_t, Arch> largest_magnitude(const float *x) {
    using F = xsimd::batch<float, Arch>;
    using I = xsimd::batch<int32_t, Arch>;
    constexpr int64_t lanes = F::size;
    const auto magnitude = [](F v) SEEDDELTA_INLINE_LAMBDA { return xsimd::bitwise_cast<int32_t>(v) & I(0x7FFFFFFF); };
    const auto four = [](const F *v) SEEDDELTA_INLINE_LAMBDA {
        return add_neighbors<Arch>(add_halves<Arch>(v[0], v[1]), add_halves<Arch>(v[2], v[3]));
    };
    I largest(0);
    I fours(0);
    for (int64_t i = 0; i < Groups * kGroup; i += 4 * lanes) {
        F values[4];
        F magnitudes[4];
        for (int64_t k = 0; k < 4; ++k) {
            values[k] = F::load_unaligned(x + i + k * lanes);
            const I bits = magnitude(values[k]);
            largest = xsimd::max(largest, bits);
            magnitudes[k] = xsimd::bitwise_cast<float>(bits);
        }
        const F both = four(magnitudes) + xsimd::bitwise_cast<float>(magnitude(four(values)));
        fours = xsimd::max(fours, xsimd::bitwise_cast<int32_t>(both));
    }
    const F share = xsimd::bitwise_cast<float>(fours) * F(kFourShare);
    return xsimd::max(largest, xsimd::bitwise_cast<int32_t>(share));
}

// `Scales` times `Groups` of kGroup floats; at most four scales. Returns whether all are finite.
template <class Arch, int64_t Groups, int64_t Scales>
inline bool quantize_scales(const float *x, int8_t *q, float *scale, int32_t *bias) {
    using F = xsimd::batch<float, Arch>;
    using I = xsimd::batch<int32_t, Arch>;
    constexpr int64_t lanes = F::size;
    constexpr int64_t columns = Groups * kGroup;
    I largest[4] = {};
    for (int64_t k = 0; k < Scales; ++k) {
        largest[k] = largest_magnitude<Arch, Groups>(x + k * columns);
    }
    alignas(16) int32_t bits[4];
    across_lanes(largest, [](auto a, auto b) SEEDDELTA_INLINE_LAMBDA { return xsimd::max(a, b); }).store_aligned(bits);
    bool finite = true;
    I sums[4 * Groups] = {};
    for (int64_t k = 0; k < Scales; ++k) {
        const float amax = __builtin_bit_cast(float, bits[k]);
        const bool real = bits[k] < 0x7F800000;
        const bool there = real && amax >= 0x1p-100F; // else all become 0
        finite &= real;
        if (!there) [[unlikely]] {
            __builtin_memset(q + k * columns, 0, columns);
        }
        const F inverse(127.0F / amax);
        for (int64_t g = k * Groups; g < (k + 1) * Groups; ++g) {
            I sum(0);
            for (int64_t i = g * kGroup; there && i < (g + 1) * kGroup; i += 4 * lanes) {
                I rounded[4];
                for (int64_t r = 0; r < 4; ++r) {
                    rounded[r] = xsimd::nearbyint_as_int(F::load_unaligned(x + i + r * lanes) * inverse);
                }
                sum += (rounded[0] + rounded[1]) + (rounded[2] + rounded[3]);
                store_bytes<Arch>(q + i, rounded);
            }
            scale[g] = there ? amax / 127.0F : 0.0F;
            sums[g] = sum;
        }
    }
    for (int64_t g = 0; g < Scales * Groups; g += 4) {
        alignas(16) int32_t sum[4];
        across_lanes(sums + g, [](auto a, auto b) SEEDDELTA_INLINE_LAMBDA { return a + b; }).store_aligned(sum);
        for (int64_t k = 0; k < 4 && g + k < Scales * Groups; ++k) {
            bias[g + k] = -kValueBias * sum[k];
        }
    }
    return finite;
}

template <class Arch, int64_t Groups>
bool quantize_together(const float *x, int64_t n, int8_t *q, float *scale, int32_t *bias) {
    constexpr int64_t columns = Groups * kGroup;
    bool finite = true;
    const auto next = [&]<int64_t Scales>() SEEDDELTA_INLINE_LAMBDA {
        finite &= quantize_scales<Arch, Groups, Scales>(x, q, scale, bias);
        n -= Scales * columns;
        x += Scales * columns;
        q += Scales * columns;
        scale += Scales * Groups;
        bias += Scales * Groups;
    };
    while (n >= 4 * columns) {
        next.template operator()<4>();
    }
    while (n >= columns) {
        next.template operator()<1>();
    }
    if (n > 0) {
        alignas(64) float tail[columns] = {};
        __builtin_memcpy(tail, x, static_cast<size_t>(n) * sizeof(float));
        finite &= n > kGroup ? quantize_scales<Arch, Groups, 1>(tail, q, scale, bias)
                             : quantize_scales<Arch, 1, 1>(tail, q, scale, bias);
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
