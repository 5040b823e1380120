// Words of the products over columns, NEON. Include inside an instruction-set unit only.
#pragma once
#include <arm_neon.h>

#include "simd/columns.hpp"

namespace seeddelta {
namespace {

struct ColumnsNeon {
    static constexpr int64_t kTokens = 4;
    static constexpr int64_t kRegisters = 4;
    using F = xsimd::batch<float, xsimd::neon64>;
    using I = xsimd::batch<int32_t, xsimd::neon64>;
    struct Pair {
        int16x8_t a, b;
    };
    struct Factor {
        int16_t a, b;
    };

    static SEEDDELTA_INLINE F half(const uint16_t *p) { return F(vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)))); }
    static SEEDDELTA_INLINE Pair pair(const int8_t *a, const int8_t *b) {
        return {vmovl_s8(vld1_s8(a)), vmovl_s8(vld1_s8(b))};
    }
    static SEEDDELTA_INLINE Factor factor(int16_t a, int16_t b) { return {a, b}; }
    static SEEDDELTA_INLINE Factor factor(const int16_t *two) { return {two[0], two[1]}; }
    static SEEDDELTA_INLINE void add(I &low, I &high, Pair p, Factor factor) {
        low = I(vmlal_n_s16(vmlal_n_s16(low, vget_low_s16(p.a), factor.a), vget_low_s16(p.b), factor.b));
        high = I(vmlal_n_s16(vmlal_n_s16(high, vget_high_s16(p.a), factor.a), vget_high_s16(p.b), factor.b));
    }
    static SEEDDELTA_INLINE void order(I &, I &) {}
};

inline int64_t popcount_neon(const uint64_t *words, int64_t n) {
    int64_t count = 0;
    for (int64_t i = 0; i < n; ++i) {
        count += vaddv_u8(vcnt_u8(vcreate_u8(words[i])));
    }
    return count;
}

} // namespace
} // namespace seeddelta
