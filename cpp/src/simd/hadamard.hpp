// Hadamard transform in place, for any xsimd architecture. The definition adds and subtracts pairs at stride 1 first,
// then at twice the stride and so on; here up to three strides are one pass over memory. Each sum is that of the
// definition, so the bits are, too. Include inside an instruction-set unit only.
#pragma once
#include <xsimd/xsimd.hpp>

#include <cstdint>

#include "simd/inline.hpp"

namespace seeddelta {
namespace {

// One float as if it was a batch.
struct OneFloat {
    static constexpr int64_t size = 1;
    float value;
    static SEEDDELTA_INLINE OneFloat load_unaligned(const float *p) { return {*p}; }
    SEEDDELTA_INLINE void store_unaligned(float *p) const { *p = value; }
    friend SEEDDELTA_INLINE OneFloat operator+(OneFloat a, OneFloat b) { return {a.value + b.value}; }
    friend SEEDDELTA_INLINE OneFloat operator-(OneFloat a, OneFloat b) { return {a.value - b.value}; }
    friend SEEDDELTA_INLINE OneFloat operator*(OneFloat a, OneFloat b) { return {a.value * b.value}; }
};

// What becomes of the last sums.
struct KeepFloats {
    template <class V>
    SEEDDELTA_INLINE V operator()(V v) const {
        return v;
    }
};
struct ScaleFloats {
    float by;
    template <class V>
    SEEDDELTA_INLINE V operator()(V v) const {
        return v * V{by};
    }
};

// Half as many floats as V, down to four; then one.
template <class V, int64_t Lanes = static_cast<int64_t>(V::size) / 2>
struct NarrowerBatch {
    using type = typename xsimd::make_sized_batch<float, static_cast<size_t>(Lanes)>::type;
};
template <class V>
struct NarrowerBatch<V, 2> {
    using type = OneFloat;
};

// Strides `stride`, 2 * stride, ... of `Rows` rows of one batch each. Store: of the rows, in ascending order.
template <int Rows, class V, class Store>
SEEDDELTA_INLINE void hadamard_rows(const float *p, int64_t stride, Store &&store) {
    V v[Rows];
    for (int k = 0; k < Rows; ++k) {
        v[k] = V::load_unaligned(p + k * stride);
    }
    for (int half = 1; half < Rows; half *= 2) {
        for (int k = 0; k < Rows; ++k) {
            if ((k & half) == 0) {
                const V a = v[k];
                const V b = v[k + half];
                v[k] = a + b;
                v[k + half] = a - b;
            }
        }
    }
    for (int k = 0; k < Rows; ++k) {
        store(k, v[k]);
    }
}

// Columns [begin, stride) of a stack of rows, as many at once as there are.
template <int Rows, class V, class Last>
SEEDDELTA_INLINE void hadamard_columns(float *p, int64_t stride, int64_t begin, Last last) {
    for (; begin + static_cast<int64_t>(V::size) <= stride; begin += static_cast<int64_t>(V::size)) {
        float *out = p + begin;
        hadamard_rows<Rows, V>(out, stride,
                               [&](int k, V v) SEEDDELTA_INLINE_LAMBDA { last(v).store_unaligned(out + k * stride); });
    }
    if constexpr (V::size > 1) {
        if (begin < stride) {
            hadamard_columns<Rows, typename NarrowerBatch<V>::type>(p, stride, begin, last);
        }
    }
}

// Stacks of rows that are shorter than a batch (3 in four lanes, 5 to 7 in eight, 9 to 15 in sixteen), up to the last
// one: what a row's other lanes write is in the next row, which is written later. Returns where it stopped.
template <int Rows, class V, class Last>
inline int64_t hadamard_short_rows(float *row, int64_t n, int64_t stride, Last last) {
    int64_t start = 0;
    for (; start + 2 * Rows * stride <= n; start += Rows * stride) {
        float *p = row + start;
        hadamard_rows<Rows, V>(p, stride, [&](int k, V sum) SEEDDELTA_INLINE_LAMBDA {
            const V v = last(sum);
            if (k + 1 < Rows) {
                v.store_unaligned(p + k * stride);
                return;
            }
            // not a float more: a load that overlaps two stores waits for both
            constexpr int64_t some = V::size / 2;
            float all[V::size];
            v.store_unaligned(all);
            __builtin_memcpy(p + k * stride, all, some * sizeof(float));
            __builtin_memcpy(p + (k + 1) * stride - some, all + stride - some, some * sizeof(float));
        });
    }
    return start;
}

template <class Arch, int Rows, class Last>
inline void hadamard_pass(float *row, int64_t n, int64_t stride, Last last) {
    using F = xsimd::batch<float, Arch>;
    using Four = typename xsimd::make_sized_batch<float, 4>::type;
    int64_t start = 0;
    if (stride == 3) {
        start = hadamard_short_rows<Rows, Four>(row, n, stride, last);
    } else if constexpr (F::size >= 8) {
        if (stride > 4 && stride < 8) {
            start = hadamard_short_rows<Rows, typename xsimd::make_sized_batch<float, 8>::type>(row, n, stride, last);
        }
        if constexpr (F::size >= 16) {
            if (stride > 8 && stride < 16) {
                start = hadamard_short_rows<Rows, F>(row, n, stride, last);
            }
        }
    }
    for (; start < n; start += Rows * stride) {
        hadamard_columns<Rows, F>(row + start, stride, 0, last);
    }
}

template <int64_t Stride>
struct SwapAt {
    static constexpr uint32_t get(size_t i, size_t) { return static_cast<uint32_t>(i ^ static_cast<size_t>(Stride)); }
};
template <int64_t Stride>
struct SignAt {
    static constexpr uint32_t get(size_t i, size_t) {
        return (i & static_cast<size_t>(Stride)) != 0 ? 0x80000000U : 0U;
    }
};

// Strides Stride, 2 * Stride, ... inside a batch. The second of a pair is a - b = a + (-b).
template <class Arch, int64_t Stride = 1>
SEEDDELTA_INLINE xsimd::batch<float, Arch> hadamard_lanes(xsimd::batch<float, Arch> x) {
    using F = xsimd::batch<float, Arch>;
    using U = xsimd::batch<uint32_t, Arch>;
    if constexpr (Stride < static_cast<int64_t>(F::size)) {
        constexpr auto swap = xsimd::make_batch_constant<uint32_t, SwapAt<Stride>, Arch>();
        const U sign = xsimd::make_batch_constant<uint32_t, SignAt<Stride>, Arch>().as_batch();
        const F other = xsimd::swizzle(x, swap);
        const F own = xsimd::bitwise_cast<float>(xsimd::bitwise_cast<uint32_t>(x) ^ sign);
        return hadamard_lanes<Arch, 2 * Stride>(other + own);
    } else {
        return x;
    }
}

// Strides `stride`, 2 * stride, ... below n, a power of two times `stride`. The sums of the last one go through `last`.
template <class Arch, class Last = KeepFloats>
inline void hadamard_simd(float *row, int64_t n, int64_t stride, Last last = {}) {
    using F = xsimd::batch<float, Arch>;
    constexpr int64_t lanes = F::size;
    if (stride == 1 && n >= lanes) {
        for (int64_t i = 0; i < n; i += lanes) {
            const F sums = hadamard_lanes<Arch>(F::load_unaligned(row + i));
            (n == lanes ? last(sums) : sums).store_unaligned(row + i);
        }
        stride = lanes;
    }
    const auto pass = [&]<int Rows>() SEEDDELTA_INLINE_LAMBDA {
        if (stride * Rows < n) {
            hadamard_pass<Arch, Rows>(row, n, stride, KeepFloats());
        } else {
            hadamard_pass<Arch, Rows>(row, n, stride, last);
        }
        stride *= Rows;
    };
    while (stride < n) {
        if (n / stride >= 8) {
            pass.template operator()<8>();
        } else if (n / stride == 4) {
            pass.template operator()<4>();
        } else {
            pass.template operator()<2>();
        }
    }
}

} // namespace
} // namespace seeddelta
