// Products over columns, for any instruction set. Include inside an instruction-set unit only.
// `Ops` has the word that xsimd lacks: `half` widens float16; kTokens times kRegisters sums of products stay in
// registers.
#pragma once
#include <xsimd/xsimd.hpp>

#include "simd/columns_scalar.hpp"
#include "simd/inline.hpp"

namespace seeddelta {
namespace {

// Outputs whose sums stay in the first-level cache while units stream past.
inline constexpr int64_t kColumnBlock = 4096;
// Units between the one that is added and the one that is fetched.
inline constexpr int64_t kUnitsAhead = 8;

// Into the second-level cache: the first level has too few lines under way at a time for the speed of the memory.
// Always inlined: GCC takes a function that does nothing else for one without effects, and drops its calls.
SEEDDELTA_INLINE void prefetch(const void *p) {
    __builtin_prefetch(p, 0, 2);
}

// The words of x86 for columns.
template <class Words, int64_t Tokens, int64_t Registers>
struct ColumnsX86 : Words {
    static constexpr int64_t kTokens = Tokens;
    static constexpr int64_t kRegisters = Registers;
};

// One unit after the other, so that what is read is one stream: the processor's own prefetcher follows no more.
template <class Arch, class Ops>
void columns_f16_simd(const ColumnWeight &w, const ActiveSet &s, int64_t out_begin, int64_t out_end, float *y) {
    using F = xsimd::batch<float, Arch>;
    constexpr int64_t lanes = F::size;
    constexpr int64_t line = 32; // halves of a cache line
    const int64_t vector_end = out_begin + (out_end - out_begin) / lanes * lanes;
    for (int64_t first = out_begin; first < vector_end; first += kColumnBlock) {
        const int64_t last = vector_end - first < kColumnBlock ? vector_end : first + kColumnBlock;
        for (int64_t o = first; o < last; o += lanes) {
            F(0.0F).store_unaligned(y + o);
        }
        for (int64_t i = 0; i < s.n; ++i) {
            const uint16_t *row = w.f16 + s.index[i] * w.n_out;
            const uint16_t *next = w.f16 + s.index[i + kUnitsAhead < s.n ? i + kUnitsAhead : i] * w.n_out;
            const F x(s.value[i]);
            const auto step = [&](int64_t o) SEEDDELTA_INLINE_LAMBDA {
                (F::load_unaligned(y + o) + x * F(Ops::half(row + o))).store_unaligned(y + o);
            };
            int64_t o = first;
            for (; o + line <= last; o += line) {
                prefetch(next + o);
                for (int64_t v = 0; v < line; v += lanes) {
                    step(o + v);
                }
            }
            for (; o < last; o += lanes) {
                step(o);
            }
        }
    }
    columns_f16_scalar(w, s, vector_end, out_end, y);
}

// Tokens [0, Tokens) and Registers registers of outputs, all inputs: the sums stay in registers.
template <class Arch, class Ops, int64_t Tokens, int64_t Registers>
SEEDDELTA_INLINE void columns_f16_tile(const ColumnWeight &w, const float *x, int64_t x_stride, int64_t o, float *y,
                                       int64_t y_stride) {
    using F = xsimd::batch<float, Arch>;
    constexpr int64_t lanes = F::size;
    F sum[Tokens][Registers];
    for (auto &token : sum) {
        for (F &s : token) {
            s = F(0.0F);
        }
    }
    const uint16_t *row = w.f16 + o;
    for (int64_t j = 0; j < w.n_in; ++j, row += w.n_out) {
        F weight[Registers];
        for (int64_t r = 0; r < Registers; ++r) {
            weight[r] = F(Ops::half(row + r * lanes));
        }
        for (int64_t t = 0; t < Tokens; ++t) {
            const F in(x[t * x_stride + j]);
            for (int64_t r = 0; r < Registers; ++r) {
                sum[t][r] = sum[t][r] + in * weight[r];
            }
        }
    }
    for (int64_t t = 0; t < Tokens; ++t) {
        for (int64_t r = 0; r < Registers; ++r) {
            sum[t][r].store_unaligned(y + t * y_stride + o + r * lanes);
        }
    }
}

template <class Arch, class Ops, int64_t Registers>
inline void columns_f16_tiles(const ColumnWeight &w, const float *x, int64_t n_tokens, int64_t x_stride, int64_t o,
                              float *y, int64_t y_stride) {
    int64_t t = 0;
    for (; t + Ops::kTokens <= n_tokens; t += Ops::kTokens) {
        columns_f16_tile<Arch, Ops, Ops::kTokens, Registers>(w, x + t * x_stride, x_stride, o, y + t * y_stride,
                                                             y_stride);
    }
    for (; t + 2 <= n_tokens; t += 2) {
        columns_f16_tile<Arch, Ops, 2, Registers>(w, x + t * x_stride, x_stride, o, y + t * y_stride, y_stride);
    }
    for (; t < n_tokens; ++t) {
        columns_f16_tile<Arch, Ops, 1, Registers>(w, x + t * x_stride, x_stride, o, y + t * y_stride, y_stride);
    }
}

template <class Arch, class Ops>
void columns_f16_batch_simd(const ColumnWeight &w, const float *x, int64_t n_tokens, int64_t x_stride,
                            int64_t out_begin, int64_t out_end, float *y, int64_t y_stride) {
    constexpr int64_t lanes = xsimd::batch<float, Arch>::size;
    int64_t o = out_begin;
    for (; o + Ops::kRegisters * lanes <= out_end; o += Ops::kRegisters * lanes) {
        columns_f16_tiles<Arch, Ops, Ops::kRegisters>(w, x, n_tokens, x_stride, o, y, y_stride);
    }
    for (; o + lanes <= out_end; o += lanes) {
        columns_f16_tiles<Arch, Ops, 1>(w, x, n_tokens, x_stride, o, y, y_stride);
    }
    columns_f16_batch_scalar(w, x, n_tokens, x_stride, o, out_end, y, y_stride);
}

template <class Arch>
int64_t count_above_simd(const int32_t *score, int64_t n, int32_t threshold) {
    using I = xsimd::batch<int32_t, Arch>;
    constexpr int64_t lanes = I::size;
    const I limit(threshold);
    I count(0);
    int64_t i = 0;
    for (; i + lanes <= n; i += lanes) {
        count = count + xsimd::select(I::load_unaligned(score + i) > limit, I(1), I(0));
    }
    return xsimd::reduce_add(count) + count_above_scalar(score + i, n - i, threshold);
}

template <class Arch>
void bitmaps_simd(const float *x, int64_t n, float eps, uint64_t *pos, uint64_t *neg) {
    using F = xsimd::batch<float, Arch>;
    constexpr int64_t lanes = F::size;
    int64_t start = 0;
    for (; start + 64 <= n; start += 64) {
        uint64_t p = 0;
        uint64_t m = 0;
        for (int64_t i = 0; i < 64; i += lanes) {
            const F v = F::load_unaligned(x + start + i);
            p |= (v > F(eps)).mask() << i;
            m |= (v < F(-eps)).mask() << i;
        }
        pos[start / 64] = p;
        neg[start / 64] = m;
    }
    if (start < n) {
        bitmaps_scalar(x + start, n - start, eps, pos + start / 64, neg + start / 64);
    }
}

} // namespace
} // namespace seeddelta
