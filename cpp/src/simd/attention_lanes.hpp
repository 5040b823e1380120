// kLanes floats in registers, for attention. Include inside an instruction-set unit only.
#pragma once
#include <xsimd/xsimd.hpp>

#include "simd/attention_kernels.hpp"
#include "simd/inline.hpp"

namespace seeddelta {
namespace {

constexpr float kNoScore = -__builtin_inff();

template <class Arch>
SEEDDELTA_INLINE xsimd::batch<float, Arch> greater(xsimd::batch<float, Arch> a, xsimd::batch<float, Arch> b) {
    return xsimd::select(a > b, a, b);
}

// exp_defined of attention.hpp
template <class Arch>
SEEDDELTA_INLINE xsimd::batch<float, Arch> exp_simd(xsimd::batch<float, Arch> x) {
    using F = xsimd::batch<float, Arch>;
    using U = xsimd::batch<uint32_t, Arch>;
    using C = ExpConstants;
    const F in = xsimd::select(x > F(C::highest), F(C::highest), x);
    const F shifted = in * F(C::log2e) + F(C::round);
    const F n = shifted - F(C::round);
    const F r = (in - n * F(C::ln2_high)) - n * F(C::ln2_low);
    F p(C::p0);
    p = p * r + F(C::p1);
    p = p * r + F(C::p2);
    p = p * r + F(C::p3);
    p = p * r + F(C::p4);
    p = p * r + F(C::p5);
    p = (p * (r * r) + r) + F(1.0F);
    const U bits = xsimd::bitwise_cast<uint32_t>(p) + (xsimd::bitwise_cast<uint32_t>(shifted) << 23);
    // x - x: not a number stays so. NOLINTNEXTLINE(misc-redundant-expression)
    const F result = xsimd::bitwise_cast<float>(bits) + (x - x);
    return xsimd::select(x < F(C::lowest), F(0.0F), result);
}

// kLanes partial values in as many registers as that takes.
template <class Arch>
struct Lanes {
    using F = xsimd::batch<float, Arch>;
    static constexpr int kCount = static_cast<int>(kLanes / static_cast<int64_t>(F::size));
    F r[kCount];
    SEEDDELTA_INLINE explicit Lanes(float x) {
        for (F &one : r) {
            one = F(x);
        }
    }
    SEEDDELTA_INLINE float sum() const {
        alignas(64) float lane[kLanes];
        for (int i = 0; i < kCount; ++i) {
            r[i].store_aligned(lane + i * F::size);
        }
        return fold_lanes(lane);
    }
    SEEDDELTA_INLINE float largest() const {
        alignas(64) float lane[kLanes];
        float top = kNoScore;
        for (int i = 0; i < kCount; ++i) {
            r[i].store_aligned(lane + i * F::size);
        }
        for (const float x : lane) {
            top = x > top ? x : top;
        }
        return top + 0.0F;
    }
};

} // namespace
} // namespace seeddelta
