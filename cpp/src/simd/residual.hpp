// The residual schemes, for any xsimd architecture: each register holds some of a row's 16 partial sums. The
// definitions are in cpp/src/format. Include inside an instruction-set unit only.
#pragma once
#include <xsimd/xsimd.hpp>

#include "simd/kernel_table.hpp"
#include "format/block.hpp"
#include "format/coo.hpp"

namespace seeddelta {
namespace {

template <class Arch>
struct PartialSums {
    using F = xsimd::batch<float, Arch>;
    static constexpr int64_t kLanes = F::size;
    static constexpr int64_t kRegisters = kCooLanes / kLanes;
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
        alignas(64) float sums[kCooLanes];
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
        alignas(64) float sums[kCooLanes];
        store(sums);
        return coo_reduce(sums);
    }
};

// One row of the coo residual.
template <class Arch, bool HalfValues, class Index>
inline float coo_dot_simd(const Index *index, const uint16_t *half, const int8_t *bytes, float byte_scale, int64_t k,
                          const float *x) {
    using F = xsimd::batch<float, Arch>;
    using I = xsimd::batch<int32_t, Arch>;
    PartialSums<Arch> partial;
    for (int64_t e = 0; e < k; e += kCooLanes) {
        alignas(64) float value[kCooLanes];
        alignas(64) int32_t column[kCooLanes];
        const int64_t count = k - e < kCooLanes ? k - e : kCooLanes;
        for (int64_t i = 0; i < count; ++i) {
            column[i] = static_cast<int32_t>(index[e + i]);
            value[i] = HalfValues ? half_to_float(half[e + i]) : byte_scale * static_cast<float>(bytes[e + i]);
        }
        if (count == kCooLanes) {
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
inline float coo_row(const seeddelta_ctx &ctx, int64_t row, const float *x) {
    const int64_t k = ctx.residual_size;
    const int64_t first = row * k;
    const uint16_t *half = ctx.residual_vals_f16 != nullptr ? ctx.residual_vals_f16 + first : nullptr;
    const int8_t *bytes = ctx.residual_vals_i8 != nullptr ? ctx.residual_vals_i8 + first : nullptr;
    const float scale = bytes != nullptr ? half_to_float(ctx.residual_scale[row]) : 0.0F;
    if (ctx.residual_index != nullptr) {
        return half != nullptr ? coo_dot_simd<Arch, true>(ctx.residual_index + first, half, bytes, scale, k, x)
                               : coo_dot_simd<Arch, false>(ctx.residual_index + first, half, bytes, scale, k, x);
    }
    return half != nullptr ? coo_dot_simd<Arch, true>(ctx.residual_index32 + first, half, bytes, scale, k, x)
                           : coo_dot_simd<Arch, false>(ctx.residual_index32 + first, half, bytes, scale, k, x);
}

template <class Arch, bool HalfValues>
inline float block_row(const seeddelta_ctx &ctx, int64_t row, const float *x) {
    const int64_t block = ctx.residual_block;
    PartialSums<Arch> total;
    for (int64_t entry = row * ctx.residual_size; entry < (row + 1) * ctx.residual_size; ++entry) {
        const int64_t column = ctx.residual_index[entry] * block;
        const int64_t count = block_columns(ctx, column);
        PartialSums<Arch> partial;
        for (int64_t start = 0; start < count; start += kCooLanes) {
            const int64_t at = entry * block + start;
            alignas(64) float value[kCooLanes];
            for (int64_t i = 0; i < kCooLanes; ++i) {
                value[i] = HalfValues ? half_to_float(ctx.residual_vals_f16[at + i])
                                      : static_cast<float>(ctx.residual_vals_i8[at + i]);
            }
            const float *in = x + column + start;
            if (count - start >= kCooLanes) {
                partial.add(value, in);
            } else {
                partial.add_some(count - start, [&](int64_t i) { return value[i] * in[i]; });
            }
        }
        const float scale = HalfValues ? 1.0F : half_to_float(ctx.residual_scale[entry]);
        for (int64_t r = 0; r < total.kRegisters; ++r) {
            total.sum[r] = total.sum[r] + partial.sum[r] * xsimd::batch<float, Arch>(scale);
        }
    }
    return total.reduce();
}

// The share of `rows` outputs of one token, before the row scales.
template <class Arch>
inline void residual_rows(const seeddelta_ctx &ctx, int64_t row0, int64_t rows, const float *x, const float *p,
                          float *out) {
    for (int64_t i = 0; i < rows; ++i) {
        switch (ctx.scheme) {
        case ResidualScheme::coo:
            out[i] = coo_row<Arch>(ctx, row0 + i, x);
            break;
        case ResidualScheme::codebook_resid:
            out[i] = coo_row<Arch>(ctx, row0 + i, p);
            break;
        case ResidualScheme::block:
            out[i] = ctx.residual_vals_f16 != nullptr ? block_row<Arch, true>(ctx, row0 + i, x)
                                                      : block_row<Arch, false>(ctx, row0 + i, x);
            break;
        default:
            out[i] = 0.0F;
        }
    }
}

// Atoms [begin, end) of the dictionary times all tokens; the definition is dictionary_dot.
template <class Arch>
void dictionary_simd(const seeddelta_ctx &ctx, int64_t begin, int64_t end, const float *x, int64_t n_tokens,
                     int64_t x_stride, float *p, float *atom) {
    for (int64_t m = begin; m < end; ++m) {
        const uint16_t *half = ctx.dictionary + m * ctx.n_in;
        for (int64_t i = 0; i < ctx.n_in; ++i) {
            atom[i] = half_to_float(half[i]);
        }
        for (int64_t token = 0; token < n_tokens; ++token) {
            const float *in = x + token * x_stride;
            PartialSums<Arch> partial;
            int64_t i = 0;
            for (; i + kCooLanes <= ctx.n_in; i += kCooLanes) {
                partial.add(atom + i, in + i);
            }
            if (i < ctx.n_in) {
                partial.add_some(ctx.n_in - i, [&](int64_t j) { return atom[i + j] * in[i + j]; });
            }
            p[token * ctx.dictionary_size + m] = partial.reduce();
        }
    }
}

} // namespace
} // namespace seeddelta
