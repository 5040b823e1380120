// Error feedback of the encoder, for any xsimd architecture. Include inside an instruction-set unit only.
#pragma once
#include <type_traits>

#include <xsimd/xsimd.hpp>

#include "simd/kernel_table.hpp"

namespace seeddelta {
namespace {

// sum - x * f, rounded once; xsimd's fnma rounds twice on NEON
template <class F>
inline F subtract_fused(const F &sum, const F &x, const F &f) {
    if constexpr (std::is_base_of_v<xsimd::neon, typename F::arch_type>) {
        return xsimd::fma(-x, f, sum);
    } else {
        return xsimd::fnma(x, f, sum);
    }
}

// R rows and two registers of columns at a time: every sum stays in a register over the whole inner loop.
template <class Arch, int R>
inline void subtract_rows(float *w, int64_t w_stride, const float *e, int64_t e_stride, const float *f,
                          int64_t f_stride, int64_t inner, int64_t n) {
    using F = xsimd::batch<float, Arch>;
    constexpr int64_t lanes = F::size;
    int64_t j = 0;
    for (; j + 2 * lanes <= n; j += 2 * lanes) {
        F low[R];
        F high[R];
        for (int r = 0; r < R; ++r) {
            low[r] = F::load_unaligned(w + r * w_stride + j);
            high[r] = F::load_unaligned(w + r * w_stride + j + lanes);
        }
        for (int64_t i = 0; i < inner; ++i) {
            const F f0 = F::load_unaligned(f + i * f_stride + j);
            const F f1 = F::load_unaligned(f + i * f_stride + j + lanes);
            for (int r = 0; r < R; ++r) {
                const F x(e[r * e_stride + i]);
                low[r] = subtract_fused(low[r], x, f0);
                high[r] = subtract_fused(high[r], x, f1);
            }
        }
        for (int r = 0; r < R; ++r) {
            low[r].store_unaligned(w + r * w_stride + j);
            high[r].store_unaligned(w + r * w_stride + j + lanes);
        }
    }
    for (; j < n; ++j) {
        for (int r = 0; r < R; ++r) {
            float sum = w[r * w_stride + j];
            for (int64_t i = 0; i < inner; ++i) {
                sum = __builtin_fmaf(-e[r * e_stride + i], f[i * f_stride + j], sum);
            }
            w[r * w_stride + j] = sum;
        }
    }
}

template <class Arch>
void subtract_product_simd(float *w, int64_t w_stride, const float *e, int64_t e_stride, const float *f,
                           int64_t f_stride, int64_t rows, int64_t inner, int64_t n) {
    constexpr int together = xsimd::batch<float, Arch>::size >= 16 ? 8 : 4; // as many sums as there are registers for
    int64_t r = 0;
    for (; r + together <= rows; r += together) {
        subtract_rows<Arch, together>(w + r * w_stride, w_stride, e + r * e_stride, e_stride, f, f_stride, inner, n);
    }
    for (; r < rows; ++r) {
        subtract_rows<Arch, 1>(w + r * w_stride, w_stride, e + r * e_stride, e_stride, f, f_stride, inner, n);
    }
}

} // namespace
} // namespace seeddelta
