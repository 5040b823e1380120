// What a tile's sums become: residual, scales, y. Include inside an instruction-set unit only.
#pragma once
#if defined(__F16C__)
#include <immintrin.h>
#endif
#include <xsimd/xsimd.hpp>

#include "format/float16.hpp"
#include "simd/inline.hpp"
#include "simd/kernel_table.hpp"
#include "simd/kinds.hpp"

namespace seeddelta {
namespace {

inline void load_row_scale(const seeddelta_ctx &ctx, int64_t row0, int64_t rows, float *row_scale) {
#if defined(__F16C__) // the instruction gives what half_to_float does, which is compiled into branches
    if (rows == kTileRows && ctx.row_scale_f16 != nullptr) {
        const uint16_t *halves = ctx.row_scale_f16 + row0;
#if defined(__AVX512F__) // one store: a load of more than a store wrote waits for the cache
        const __m256i all = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(halves));
        _mm512_store_ps(row_scale, _mm512_maskz_cvtph_ps(0xFFFF, all));
#else
        for (int64_t i = 0; i < kTileRows; i += 8) {
            const auto *eight = reinterpret_cast<const __m128i *>(halves + i);
            _mm256_store_ps(row_scale + i, _mm256_cvtph_ps(_mm_loadu_si128(eight)));
        }
#endif
        return;
    }
#endif
    for (int64_t i = 0; i < rows; ++i) {
        row_scale[i] =
            ctx.row_scale_f16 != nullptr ? half_to_float(ctx.row_scale_f16[row0 + i]) : ctx.row_scale_f32[row0 + i];
    }
}

// Asks for the scales of a tile before it is multiplied: they come from memory and are needed right behind it.
inline void prefetch_row_scale(const seeddelta_ctx &ctx, int64_t row0) {
    if (ctx.row_scale_f16 != nullptr) {
        __builtin_prefetch(ctx.row_scale_f16 + row0);
    } else {
        __builtin_prefetch(ctx.row_scale_f32 + row0);
    }
}

// Whether all outputs so far are finite: their largest exponents, of each row of the tiles by itself, so that a tile
// does not wait for the comparison of its rows. Words are spelled out: GCC takes the rows apart one by one.
template <class Arch>
class Exponents {
public:
    using Floats = xsimd::batch<float, Arch>;
    static constexpr int kSize = static_cast<int>(Floats::size);
    static constexpr int kCount = static_cast<int>(kTileRows) / kSize;

    Exponents() {
        for (auto &words : largest_) {
            words = Words(0);
        }
    }
    // `out`: number i of the kCount that a tile's rows are.
    SEEDDELTA_INLINE void add(int i, Floats out) {
        largest_[i] = xsimd::max(largest_[i], xsimd::bitwise_cast<int32_t>(out) & Words(kMask));
    }
    SEEDDELTA_INLINE void add(const Exponents &other) {
        unrolled<kCount>([&](int i)
                             SEEDDELTA_INLINE_LAMBDA { largest_[i] = xsimd::max(largest_[i], other.largest_[i]); });
    }
    bool finite() const {
        bool finite = true;
        for (const auto &words : largest_) {
            finite &= xsimd::all(words != Words(kMask));
        }
        return finite;
    }

private:
    using Words = xsimd::batch<int32_t, Arch>;
    static constexpr int32_t kMask = 0x7F800000; // of a float; all set in NaN and infinity
    Words largest_[kCount];
};

// Rows of a whole tile without residual, of `count` tokens. The 0 stands for the residual: it makes -0 to 0. Scales are
// copied: they stay in registers, which y could not be told apart from otherwise. So do the exponents of a tile; those
// of all tiles are in memory, where each token would wait for the one before.
template <class Arch>
SEEDDELTA_INLINE void finish_whole_tile(const seeddelta_ctx &ctx, const Activations &a, int64_t row0,
                                        const float *row_scale, int64_t first, int64_t count,
                                        const float (*acc)[kTileRows], float *y, int64_t y_stride,
                                        Exponents<Arch> &exponents) {
    using Floats = typename Exponents<Arch>::Floats;
    constexpr int kSize = Exponents<Arch>::kSize;
    const Floats base_scale(ctx.base_scale);
    Floats scale[Exponents<Arch>::kCount];
    unrolled<Exponents<Arch>::kCount>(
        [&](int i) SEEDDELTA_INLINE_LAMBDA { scale[i] = Floats::load_aligned(row_scale + i * kSize); });
    Exponents<Arch> all;
    const int64_t *places = a.places;
    for (int64_t t = 0; t < count; ++t) {
        float *to = y + (places == nullptr ? first + t : places[first + t]) * y_stride + row0;
        unrolled<Exponents<Arch>::kCount>([&](int i) SEEDDELTA_INLINE_LAMBDA {
            const Floats sum = Floats::load_unaligned(acc[t] + i * kSize) * base_scale + Floats(0.0F);
            const Floats out = scale[i] * sum;
            all.add(i, out);
            out.store_unaligned(to + i * kSize);
        });
    }
    exponents.add(all);
}

// The share of `rows` outputs of one token, before the row scales; not inline, for most weights have none.
template <class Arch>
[[gnu::noinline]] void residual_rows(const seeddelta_ctx &ctx, int64_t row0, int64_t rows, const float *x,
                                     const float *p, float *out) {
    Kinds::scheme(ctx.scheme, [&]<class K>() {
        for (int64_t i = 0; i < rows; ++i) {
            out[i] = SimdOf<K, Arch>::dot(ctx, row0 + i, x, p);
        }
    });
}

// Adds the residual, applies the scales and writes one token's rows of a tile.
template <class Arch>
inline void finish_tile(const seeddelta_ctx &ctx, int64_t row0, int64_t rows, const float *row_scale, const float *acc,
                        const float *x, const float *p, float *y, Exponents<Arch> &exponents) {
    alignas(64) float residual[kTileRows] = {};
    residual_rows<Arch>(ctx, row0, rows, x, p, residual);
    alignas(64) float out[kTileRows];
    for (int64_t i = 0; i < kTileRows; ++i) {
        out[i] = row_scale[i] * (acc[i] * ctx.base_scale + residual[i]);
    }
    unrolled<Exponents<Arch>::kCount>([&](int i) SEEDDELTA_INLINE_LAMBDA {
        exponents.add(i, Exponents<Arch>::Floats::load_aligned(out + i * Exponents<Arch>::kSize));
    });
    for (int64_t i = 0; i < rows; ++i) {
        y[row0 + i] = out[i];
    }
}

// The same for `count` tokens from `first` on. row_scale is aligned.
template <class Arch>
inline void finish_tokens(const seeddelta_ctx &ctx, const Activations &a, int64_t row0, int64_t rows,
                          const float *row_scale, int64_t first, int64_t count, const float (*acc)[kTileRows], float *y,
                          int64_t y_stride, Exponents<Arch> &exponents) {
    if (ctx.scheme == ResidualScheme::none && rows == kTileRows) {
        return finish_whole_tile<Arch>(ctx, a, row0, row_scale, first, count, acc, y, y_stride, exponents);
    }
    for (int64_t t = 0; t < count; ++t) {
        const float *x = a.x == nullptr ? nullptr : a.x + (first + t) * a.x_stride; // there for a residual
        finish_tile<Arch>(ctx, row0, rows, row_scale, acc[t], x, a.p + (first + t) * ctx.dictionary_size,
                          y + a.place(first + t) * y_stride, exponents);
    }
}

} // namespace
} // namespace seeddelta
