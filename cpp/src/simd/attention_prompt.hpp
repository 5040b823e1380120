// Attention of prompts (PromptTask in simd/attention_kernels.hpp), for any xsimd architecture. Beside the words of
// simd/attention.hpp `Ops` has
//   kTileRows, kTileRegisters: sums that are kept in registers at once
// Include inside an instruction-set unit only.
#pragma once
#include "simd/attention.hpp"

namespace seeddelta {
namespace {

// kSize keys at a time, so that positions instead of channels lie side by side.
template <class Arch, class Ops, CacheType kType>
void widen_keys(const WidenTask &t) {
    using F = typename Ops::F;
    constexpr int64_t size = F::size;
    for (int64_t i = 0; i < kAttentionChunk; i += size) {
        float *out = t.keys + i / kPanel * t.dim_k * kPanel + i % kPanel;
        for (int64_t d = 0; d < t.dim_k; d += size) {
            F rows[size];
            for (int64_t key = 0; key < size; ++key) {
                rows[key] = t.sees(i + key) ? channels<Ops, kType>(t.k + (i + key) * t.k_stride, d) : F(0.0F);
            }
            xsimd::transpose(rows, rows + size);
            for (int64_t c = 0; c < size; ++c) {
                rows[c].store_unaligned(out + (d + c) * kPanel);
            }
        }
    }
}

template <class Ops, CacheType kType>
void widen_values(const WidenTask &t) {
    using F = typename Ops::F;
    constexpr int64_t size = F::size;
    for (int64_t i = 0; i < kAttentionChunk; ++i) {
        const bool visible = t.sees(i);
        float *out = t.values + i * kPanel;
        const auto put = [&](int64_t d, F value) {
            value.store_unaligned(out + d / kPanel * kAttentionChunk * kPanel + d % kPanel);
        };
        for (int64_t d = 0; d < t.dim_v; d += size) {
            put(d, visible ? channels<Ops, kType>(t.v + i * t.v_stride, d) : F(0.0F));
        }
        for (int64_t d = t.dim_v; d < whole_panels(t.dim_v); d += size) {
            put(d, F(0.0F));
        }
    }
}

template <class Arch, class Ops>
void widen_simd(const WidenTask &t) {
    with_type(t.k_type, [&]<CacheType kType> { widen_keys<Arch, Ops, kType>(t); });
    with_type(t.v_type, [&]<CacheType kType> { widen_values<Ops, kType>(t); });
}

// c [kPromptRows, kPanel] += a [kPromptRows, n] * b [n, kPanel], each element in the order of n.
template <class Ops>
SEEDDELTA_INLINE void multiply_panel(const float *a, int64_t a_stride, const float *b, int64_t n, float *c,
                                     int64_t c_stride) {
    using F = typename Ops::F;
    constexpr int64_t size = F::size;
    constexpr int kRows = Ops::kTileRows;
    constexpr int kRegisters = Ops::kTileRegisters;
    for (int64_t row = 0; row < kPromptRows; row += kRows) {
        for (int64_t at = 0; at < kPanel; at += kRegisters * size) {
            F sum[kRows][kRegisters];
            unrolled<kRows>([&](int r) SEEDDELTA_INLINE_LAMBDA {
                unrolled<kRegisters>([&](int i) SEEDDELTA_INLINE_LAMBDA {
                    sum[r][i] = F::load_unaligned(c + (row + r) * c_stride + at + i * size);
                });
            });
            const float *x = a + row * a_stride;
            const float *y = b + at;
            for (int64_t k = 0; k < n; ++k) {
                F right[kRegisters];
                unrolled<kRegisters>(
                    [&](int i) SEEDDELTA_INLINE_LAMBDA { right[i] = F::load_unaligned(y + k * kPanel + i * size); });
                unrolled<kRows>([&](int r) SEEDDELTA_INLINE_LAMBDA {
                    const F left(x[r * a_stride + k]);
                    unrolled<kRegisters>(
                        [&](int i) SEEDDELTA_INLINE_LAMBDA { sum[r][i] = Ops::fused(left, right[i], sum[r][i]); });
                });
            }
            unrolled<kRows>([&](int r) SEEDDELTA_INLINE_LAMBDA {
                unrolled<kRegisters>([&](int i) SEEDDELTA_INLINE_LAMBDA {
                    sum[r][i].store_unaligned(c + (row + r) * c_stride + at + i * size);
                });
            });
        }
    }
}

// Scores of a row at positions begin .. end, multiples of kLanes, become weights. Returns their sum.
template <class Arch, class Ops>
float soften(const PromptTask &t, int64_t row, float *score, int64_t begin, int64_t end) {
    using F = xsimd::batch<float, Arch>;
    constexpr int64_t size = F::size;
    const PromptRow &seen = t.row[row];
    if (t.softcap != 0.0F) {
        for (int64_t i = seen.from; i < seen.to; ++i) {
            score[i] = t.softcap * tanh_defined(score[i]);
        }
    }
    if (seen.bias != nullptr) {
        for (int64_t i = begin; i < end; i += size) {
            const F bias = F::load_unaligned(seen.bias + i);
            const F sum = F::load_unaligned(score + i) + F(seen.slope) * bias;
            xsimd::select(bias == F(kNoScore), bias, sum).store_unaligned(score + i);
        }
    }
    for (int64_t i = begin; i < seen.from; ++i) {
        score[i] = kNoScore;
    }
    for (int64_t i = seen.to; i < end; ++i) {
        score[i] = kNoScore;
    }
    const float largest = largest_of<Arch>(score + begin, end - begin);
    const float top = t.top[row] < largest ? largest : t.top[row];
    const float sum = weights_of<Arch, Ops>(score + begin, end - begin, top);
    const float factor = exp_defined(t.top[row] - top);
    t.top[row] = top;
    t.sum[row] = t.sum[row] * factor + sum;
    return factor;
}

template <class Arch>
SEEDDELTA_INLINE void scale_row(float *row, int64_t n, float factor) {
    using F = xsimd::batch<float, Arch>;
    for (int64_t d = 0; d < n; d += F::size) {
        (F::load_unaligned(row + d) * F(factor)).store_unaligned(row + d);
    }
}

// kPromptRows rows from `first` on.
template <class Arch, class Ops>
void prompt_rows(const PromptTask &t, int64_t first) {
    int32_t from = kAttentionChunk;
    int32_t to = 0;
    for (int64_t row = first; row < first + kPromptRows; ++row) {
        const PromptRow &seen = t.row[row];
        from = seen.from < seen.to && seen.from < from ? seen.from : from;
        to = seen.from < seen.to && seen.to > to ? seen.to : to;
    }
    if (from >= to) {
        return;
    }
    for (int64_t i = 0; i < kPromptRows * kAttentionChunk; ++i) {
        t.scores[i] = 0.0F;
    }
    for (int64_t at = from / kPanel * kPanel; at < to; at += kPanel) {
        multiply_panel<Ops>(t.q + first * t.dim_k, t.dim_k, t.keys + at * t.dim_k, t.dim_k, t.scores + at,
                            kAttentionChunk);
    }
    const int64_t width = whole_panels(t.dim_v);
    const int64_t begin = from / kLanes * kLanes;
    const int64_t end = (to + kLanes - 1) / kLanes * kLanes;
    for (int64_t r = 0; r < kPromptRows; ++r) {
        float *score = t.scores + r * kAttentionChunk;
        if (t.row[first + r].from < t.row[first + r].to) {
            const float factor = soften<Arch, Ops>(t, first + r, score, begin, end);
            scale_row<Arch>(t.out + (first + r) * width, width, factor);
        } else {
            for (int64_t i = from; i < to; ++i) {
                score[i] = 0.0F;
            }
        }
    }
    for (int64_t d = 0; d < width; d += kPanel) {
        multiply_panel<Ops>(t.scores + from, kAttentionChunk, t.values + d * kAttentionChunk + from * kPanel, to - from,
                            t.out + first * width + d, width);
    }
}

template <class Arch, class Ops>
void prompt_simd(const PromptTask &t) {
    for (int64_t row = 0; row < t.rows; row += kPromptRows) {
        prompt_rows<Arch, Ops>(t, row);
    }
}

} // namespace
} // namespace seeddelta
