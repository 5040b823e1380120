// Products over columns, for any instruction set. Include inside an instruction-set unit only.
// `Ops` has the words that xsimd lacks: `half` widens float16, `pair` makes int16 of the weights of two units, `add`
// adds pair times factor to two registers V of int32, and `order` sorts those two by output; kTokens times kRegisters
// sums of float16 products stay in registers.
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
    using V = typename Words::V;
    struct Pair {
        V part[2];
    };

    static SEEDDELTA_INLINE Pair pair(const int8_t *a, const int8_t *b) {
        Pair p;
        Words::zip16(Words::widen(a), Words::widen(b), p.part[0], p.part[1]);
        return p;
    }
    static SEEDDELTA_INLINE V factor(int16_t a, int16_t b) {
        return Words::start(static_cast<int>(static_cast<uint32_t>(static_cast<uint16_t>(a)) |
                                             static_cast<uint32_t>(static_cast<uint16_t>(b)) << 16));
    }
    static SEEDDELTA_INLINE V factor(const int16_t *two) {
        int32_t bits;
        __builtin_memcpy(&bits, two, 4);
        return Words::start(bits);
    }
    static SEEDDELTA_INLINE void add(V *sums, Pair p, V factor) {
        sums[0] = Words::dot_pairs(sums[0], p.part[0], factor);
        sums[1] = Words::dot_pairs(sums[1], p.part[1], factor);
    }
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

// y += sums * scale of two registers of outputs
template <class Arch, class Ops>
SEEDDELTA_INLINE void add_sums(typename Ops::V *sums, xsimd::batch<float, Arch> scale, float *y) {
    using F = xsimd::batch<float, Arch>;
    using I = xsimd::batch<int32_t, Arch>;
    Ops::order(sums);
    for (int64_t r = 0; r < 2; ++r, y += I::size) {
        (F::load_unaligned(y) + xsimd::to_float(I(sums[r])) * scale).store_unaligned(y);
    }
}

// Adds the products of four units, numbers i and on of those before `end`, for outputs [first, last) to dot. Begins:
// to 0.
template <class Arch, class Ops, bool Begins>
SEEDDELTA_INLINE void add_four_units(const ColumnWeight &w, const ColumnInput &in, int64_t i, int64_t end,
                                     int64_t first, int64_t last, int32_t *dot) {
    using I = xsimd::batch<int32_t, Arch>;
    constexpr int64_t lanes = I::size;
    constexpr int64_t width = 2 * lanes; // outputs of a pair
    constexpr int64_t line = 64;         // int8 of a cache line
    const int8_t *row[4];
    const int8_t *next[4];
    int16_t q[4];
    for (int64_t k = 0; k < 4; ++k) { // what is missing to four counts as a unit times 0
        const bool there = i + k < end;
        row[k] = w.i8 + in.index[there ? i + k : i] * w.n_out;
        next[k] = w.i8 + in.index[i + kUnitsAhead + k < in.n ? i + kUnitsAhead + k : i] * w.n_out;
        q[k] = there ? in.q16[i + k] : static_cast<int16_t>(0);
    }
    const auto factor1 = Ops::factor(q[0], q[1]);
    const auto factor2 = Ops::factor(q[2], q[3]);
    const auto step = [&](int64_t o) SEEDDELTA_INLINE_LAMBDA {
        typename Ops::V sums[2] = {I(0), I(0)};
        for (int64_t r = 0; !Begins && r < 2; ++r) {
            sums[r] = I::load_aligned(dot + o - first + r * lanes);
        }
        Ops::add(sums, Ops::pair(row[0] + o, row[1] + o), factor1);
        Ops::add(sums, Ops::pair(row[2] + o, row[3] + o), factor2);
        I(sums[0]).store_aligned(dot + o - first);
        I(sums[1]).store_aligned(dot + o - first + lanes);
    };
    int64_t o = first;
    for (; o + line <= last; o += line) {
        for (int64_t k = 0; k < 4; ++k) {
            prefetch(next[k] + o);
        }
        for (int64_t v = 0; v < line; v += width) {
            step(o + v);
        }
    }
    for (; o < last; o += width) {
        step(o);
    }
}

template <class Arch, class Ops>
void columns_i8_simd(const ColumnWeight &w, const ColumnInput &in, int64_t out_begin, int64_t out_end, float *y) {
    using F = xsimd::batch<float, Arch>;
    using I = xsimd::batch<int32_t, Arch>;
    constexpr int64_t lanes = F::size;
    constexpr int64_t width = 2 * lanes; // outputs of a pair
    const int64_t vector_end = out_begin + (out_end - out_begin) / width * width;
    alignas(64) int32_t dot[kColumnBlock];
    for (int64_t first = out_begin; first < vector_end; first += kColumnBlock) {
        const int64_t last = vector_end - first < kColumnBlock ? vector_end : first + kColumnBlock;
        for (int64_t o = first; o < last; o += lanes) {
            F(0.0F).store_unaligned(y + o);
        }
        for (int64_t g = 0; g < in.n_groups; ++g) {
            const int64_t end = in.begin[g + 1];
            if (in.begin[g] == end) {
                continue;
            }
            add_four_units<Arch, Ops, true>(w, in, in.begin[g], end, first, last, dot);
            for (int64_t i = in.begin[g] + 4; i < end; i += 4) {
                add_four_units<Arch, Ops, false>(w, in, i, end, first, last, dot);
            }
            const F scale(in.scale[g]);
            for (int64_t o = first; o < last; o += width) {
                typename Ops::V sums[2] = {I::load_aligned(dot + o - first), I::load_aligned(dot + o - first + lanes)};
                add_sums<Arch, Ops>(sums, scale, y + o);
            }
        }
    }
    columns_i8_scalar(w, in, vector_end, out_end, y);
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

// One group of positions of Tokens tokens, one pair of registers of outputs; adds to y.
template <class Arch, class Ops, int64_t Tokens>
SEEDDELTA_INLINE void columns_i8_tile(const ColumnWeight &w, const ColumnBatch &in, int64_t t0, int64_t g, int64_t o,
                                      float *y, int64_t y_stride) {
    using F = xsimd::batch<float, Arch>;
    using I = xsimd::batch<int32_t, Arch>;
    const int64_t begin = g * kGroup;
    const int64_t end = w.n_in - begin < kGroup ? w.n_in : begin + kGroup;
    typename Ops::V sums[Tokens][2];
    for (auto &token : sums) {
        token[0] = token[1] = I(0);
    }
    const int8_t *row = w.i8 + begin * w.n_out + o;
    const int16_t *q = in.q + t0 * in.stride + begin;
    for (int64_t j = begin; j < end; j += 2, row += 2 * w.n_out, q += 2) {
        const auto pair = Ops::pair(row, j + 1 < end ? row + w.n_out : row); // q of the padding is 0
        for (int64_t t = 0; t < Tokens; ++t) {
            Ops::add(sums[t], pair, Ops::factor(q + t * in.stride));
        }
    }
    for (int64_t t = 0; t < Tokens; ++t) {
        const F scale(in.scale[(t0 + t) * (in.stride / kGroup) + g]);
        add_sums<Arch, Ops>(sums[t], scale, y + (t0 + t) * y_stride + o);
    }
}

template <class Arch, class Ops>
void columns_i8_batch_simd(const ColumnWeight &w, const ColumnBatch &in, int64_t out_begin, int64_t out_end, float *y,
                           int64_t y_stride) {
    constexpr int64_t width = 2 * xsimd::batch<float, Arch>::size;
    constexpr int64_t slab = 64; // outputs: a cache line of every unit
    const int64_t vector_end = out_begin + (out_end - out_begin) / width * width;
    for (int64_t first = out_begin; first < vector_end; first += slab) {
        const int64_t last = vector_end - first < slab ? vector_end : first + slab;
        for (int64_t t = 0; t < in.n_tokens; ++t) {
            for (int64_t o = first; o < last; ++o) {
                y[t * y_stride + o] = 0.0F;
            }
        }
        for (int64_t g = 0; g < in.stride / kGroup; ++g) {
            for (int64_t o = first; o < last; o += width) {
                int64_t t = 0;
                for (; t + Ops::kTokens <= in.n_tokens; t += Ops::kTokens) {
                    columns_i8_tile<Arch, Ops, Ops::kTokens>(w, in, t, g, o, y, y_stride);
                }
                for (; t < in.n_tokens; ++t) {
                    columns_i8_tile<Arch, Ops, 1>(w, in, t, g, o, y, y_stride);
                }
            }
        }
    }
    columns_i8_batch_scalar(w, in, vector_end, out_end, y, y_stride);
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
