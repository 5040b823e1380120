// Which keys their bits choose, for any xsimd architecture. `Ops` as in attention.hpp. Include inside an
// instruction-set unit only.
#pragma once
#include "simd/attention_lanes.hpp"

namespace seeddelta {
namespace {

template <class Arch, class Ops>
float estimate_simd(const int16_t *sums, const float *gamma, int64_t n, float factor, float offset, float *out) {
    using F = xsimd::batch<float, Arch>;
    constexpr int64_t size = F::size;
    Lanes<Arch> most(kNoScore);
    for (int64_t i = 0; i < n; i += kLanes) {
        for (int r = 0; r < Lanes<Arch>::kCount; ++r) {
            const int64_t at = i + r * size;
            const F x = F::load_unaligned(gamma + at) * (F(factor) * Ops::words(sums + at) + F(offset));
            x.store_unaligned(out + at);
            most.r[r] = greater(x, most.r[r]);
        }
    }
    return most.largest();
}

template <class Arch>
void nearness_simd(const float *estimates, int64_t stride, const float *top, int64_t heads, int64_t n, float *out) {
    using F = xsimd::batch<float, Arch>;
    for (int64_t i = 0; i < n; i += F::size) {
        F best(kNoScore);
        for (int64_t head = 0; head < heads; ++head) {
            best = greater(F::load_unaligned(estimates + head * stride + i) - F(top[head]), best);
        }
        best.store_unaligned(out + i);
    }
}

// Plain code that the compiler makes vectors of.
template <class Arch>
int64_t count_simd(const float *a, int64_t n, float limit) {
    int32_t found = 0;
    for (int32_t i = 0; i < static_cast<int32_t>(n); ++i) {
        found += a[i] >= limit ? 1 : 0;
    }
    return found;
}

template <class Arch>
void above_simd(const float *a, int64_t n, float limit, uint64_t *words) {
    using F = xsimd::batch<float, Arch>;
    for (int64_t i = 0; i < n; i += 64) {
        uint64_t word = 0;
        for (int64_t bit = 0; bit < 64; bit += F::size) {
            word |= static_cast<uint64_t>((F::load_unaligned(a + i + bit) >= F(limit)).mask()) << bit;
        }
        words[i / 64] = word;
    }
}

template <class Arch>
float mass_simd(const float *a, int64_t n, float limit) {
    using F = xsimd::batch<float, Arch>;
    constexpr int64_t size = F::size;
    Lanes<Arch> sum(0.0F);
    for (int64_t i = 0; i < n; i += kLanes) {
        for (int r = 0; r < Lanes<Arch>::kCount; ++r) {
            const F x = F::load_unaligned(a + i + r * size);
            sum.r[r] = sum.r[r] + xsimd::select(x >= F(limit), exp_simd<Arch>(x), F(0.0F));
        }
    }
    return sum.sum();
}

} // namespace
} // namespace seeddelta
