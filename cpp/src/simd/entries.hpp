// Sums of products for any xsimd architecture: each register holds some of a row's 16 partial sums (entries.hpp,
// format/partial_sums.hpp). Include inside an instruction-set unit only.
#pragma once
#include <xsimd/xsimd.hpp>

#include "kinds/entries.hpp"

namespace seeddelta {
namespace {

template <class Arch>
struct PartialSums {
    using F = xsimd::batch<float, Arch>;
    static constexpr int64_t kLanes = F::size;
    static constexpr int64_t kRegisters = kSumLanes / kLanes;
    F sum[kRegisters];

    inline PartialSums() {
        for (auto &s : sum) {
            s = F(0.0F);
        }
    }
    // 16 products
    inline void add(const float *value, const float *x) {
        for (int64_t r = 0; r < kRegisters; ++r) {
            sum[r] = sum[r] + F::load_aligned(value + r * kLanes) * F::load_unaligned(x + r * kLanes);
        }
    }
    // Fewer than 16: an absent entry must not touch its sum, 0 * x could be NaN.
    template <class Product>
    inline void add_some(int64_t count, Product &&product) {
        alignas(64) float sums[kSumLanes];
        store(sums);
        for (int64_t i = 0; i < count; ++i) {
            sums[i] += product(i);
        }
        for (int64_t r = 0; r < kRegisters; ++r) {
            sum[r] = F::load_aligned(sums + r * kLanes);
        }
    }
    inline void store(float *sums) const {
        for (int64_t r = 0; r < kRegisters; ++r) {
            sum[r].store_aligned(sums + r * kLanes);
        }
    }
    inline float reduce() const {
        alignas(64) float sums[kSumLanes];
        store(sums);
        return reduce_sums(sums);
    }
};

// entries_dot
template <class Arch, bool HalfValues, class Index>
inline float some_entries_dot(const Index *index, const uint16_t *half, const int8_t *bytes, float byte_scale,
                              int64_t k, const float *x) {
    using F = xsimd::batch<float, Arch>;
    using I = xsimd::batch<int32_t, Arch>;
    PartialSums<Arch> partial;
    for (int64_t e = 0; e < k; e += kSumLanes) {
        alignas(64) float value[kSumLanes];
        alignas(64) int32_t column[kSumLanes];
        const int64_t count = k - e < kSumLanes ? k - e : kSumLanes;
        for (int64_t i = 0; i < count; ++i) {
            column[i] = static_cast<int32_t>(index[e + i]);
            value[i] = HalfValues ? half_to_float(half[e + i]) : byte_scale * static_cast<float>(bytes[e + i]);
        }
        if (count == kSumLanes) {
            for (int64_t r = 0; r < partial.kRegisters; ++r) {
                const int64_t at = r * partial.kLanes;
                partial.sum[r] =
                    partial.sum[r] + F::load_aligned(value + at) * F::gather(x, I::load_aligned(column + at));
            }
        } else {
            partial.add_some(count, [&](int64_t i) { return value[i] * x[column[i]]; });
        }
    }
    return partial.reduce();
}

template <class Arch>
inline float entries_dot_simd(const seeddelta_ctx &ctx, int64_t row, const float *x) {
    const int64_t k = ctx.residual_size;
    const int64_t first = row * k;
    const uint16_t *half = ctx.residual_vals_f16 != nullptr ? ctx.residual_vals_f16 + first : nullptr;
    const int8_t *bytes = ctx.residual_vals_i8 != nullptr ? ctx.residual_vals_i8 + first : nullptr;
    const float scale = bytes != nullptr ? half_to_float(ctx.residual_scale[row]) : 0.0F;
    if (ctx.residual_index != nullptr) {
        return half != nullptr ? some_entries_dot<Arch, true>(ctx.residual_index + first, half, bytes, scale, k, x)
                               : some_entries_dot<Arch, false>(ctx.residual_index + first, half, bytes, scale, k, x);
    }
    return half != nullptr ? some_entries_dot<Arch, true>(ctx.residual_index32 + first, half, bytes, scale, k, x)
                           : some_entries_dot<Arch, false>(ctx.residual_index32 + first, half, bytes, scale, k, x);
}

} // namespace
} // namespace seeddelta
