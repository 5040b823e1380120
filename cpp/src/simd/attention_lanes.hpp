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

// exp_defined of attention_kernels.hpp for kCount registers. Every step is done for all of them before the next step,
// because each step depends on the one before.
template <int kCount, class Arch>
SEEDDELTA_INLINE void exp_simd(xsimd::batch<float, Arch> *x) {
    using F = xsimd::batch<float, Arch>;
    using U = xsimd::batch<uint32_t, Arch>;
    using C = ExpConstants;
    F shifted[kCount], r[kCount], p[kCount];
    const auto each = [](auto &&step) SEEDDELTA_INLINE_LAMBDA { unrolled<kCount>(step); };
    each([&](int i) SEEDDELTA_INLINE_LAMBDA { r[i] = xsimd::select(x[i] > F(C::highest), F(C::highest), x[i]); });
    each([&](int i) SEEDDELTA_INLINE_LAMBDA { shifted[i] = r[i] * F(C::log2e) + F(C::round); });
    each([&](int i) SEEDDELTA_INLINE_LAMBDA { p[i] = shifted[i] - F(C::round); });
    each([&](int i) SEEDDELTA_INLINE_LAMBDA { r[i] = (r[i] - p[i] * F(C::ln2_high)) - p[i] * F(C::ln2_low); });
    each([&](int i) SEEDDELTA_INLINE_LAMBDA { p[i] = F(C::p0) * r[i] + F(C::p1); });
    each([&](int i) SEEDDELTA_INLINE_LAMBDA { p[i] = p[i] * r[i] + F(C::p2); });
    each([&](int i) SEEDDELTA_INLINE_LAMBDA { p[i] = p[i] * r[i] + F(C::p3); });
    each([&](int i) SEEDDELTA_INLINE_LAMBDA { p[i] = p[i] * r[i] + F(C::p4); });
    each([&](int i) SEEDDELTA_INLINE_LAMBDA { p[i] = p[i] * r[i] + F(C::p5); });
    each([&](int i) SEEDDELTA_INLINE_LAMBDA { p[i] = (p[i] * (r[i] * r[i]) + r[i]) + F(1.0F); });
    each([&](int i) SEEDDELTA_INLINE_LAMBDA {
        const U bits = xsimd::bitwise_cast<uint32_t>(p[i]) + (xsimd::bitwise_cast<uint32_t>(shifted[i]) << 23);
        // x - x: not a number stays so. NOLINTNEXTLINE(misc-redundant-expression)
        const F result = xsimd::bitwise_cast<float>(bits) + (x[i] - x[i]);
        x[i] = xsimd::select(x[i] < F(C::lowest), F(0.0F), result);
    });
}

template <class Arch>
SEEDDELTA_INLINE xsimd::batch<float, Arch> exp_simd(xsimd::batch<float, Arch> x) {
    exp_simd<1>(&x);
    return x;
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
        F top = r[0];
        for (int i = 1; i < kCount; ++i) {
            top = greater(r[i], top);
        }
        return xsimd::reduce_max(top) + 0.0F; // 0 of -0
    }
};

// Largest of n scores, a multiple of kLanes; what is not a number does not count.
template <class Arch>
SEEDDELTA_INLINE float largest_of(const float *score, int64_t n) {
    using F = xsimd::batch<float, Arch>;
    Lanes<Arch> most(kNoScore);
    for (int64_t i = 0; i < n; i += kLanes) {
        for (int r = 0; r < Lanes<Arch>::kCount; ++r) {
            most.r[r] = greater(F::load_unaligned(score + i + r * F::size), most.r[r]);
        }
    }
    return most.largest();
}

// n scores, a multiple of kLanes, become exp(score - top). Returns their sum.
template <class Arch, class Ops>
SEEDDELTA_INLINE float weights_of(float *score, int64_t n, float top) {
    using F = xsimd::batch<float, Arch>;
    constexpr int64_t size = F::size;
    Lanes<Arch> sum(0.0F);
    const auto some = [&]<int kCount>(float *from) SEEDDELTA_INLINE_LAMBDA {
        F weight[kCount];
        unrolled<kCount>([&](int r)
                             SEEDDELTA_INLINE_LAMBDA { weight[r] = F::load_unaligned(from + r * size) - F(top); });
        exp_simd<kCount>(weight);
        unrolled<kCount>([&](int r) SEEDDELTA_INLINE_LAMBDA {
            weight[r].store_unaligned(from + r * size);
            F &lane = sum.r[r % Lanes<Arch>::kCount];
            lane = lane + weight[r];
        });
    };
    int64_t i = 0;
    for (; i + 4 * size <= n; i += 4 * size) {
        some.template operator()<4>(score + i);
    }
    for (; i < n; i += kLanes) {
        some.template operator()<Lanes<Arch>::kCount>(score + i);
    }
    float sums[4]; // all the same
    Ops::sum4(sum.r, sum.r, sum.r, sum.r, sums);
    return sums[0];
}

} // namespace
} // namespace seeddelta
