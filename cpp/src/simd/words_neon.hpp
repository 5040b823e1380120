// The words of columns.hpp on NEON, 128 bits. Include inside an instruction-set unit only. A product by one number
// needs no interleaved pairs.
#pragma once
#include <arm_neon.h>

#include "simd/inline.hpp"

namespace seeddelta {
namespace {

struct ColumnsNeon {
    using V = int32x4_t;
    using F = float32x4_t;
    static constexpr int64_t kTokens = 4;
    static constexpr int64_t kRegisters = 4;
    struct Pair {
        int16x8_t a, b;
    };
    struct Factor {
        int16_t a, b;
    };

    static SEEDDELTA_INLINE F half(const uint16_t *p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
    static SEEDDELTA_INLINE Pair pair(const int8_t *a, const int8_t *b) {
        return {vmovl_s8(vld1_s8(a)), vmovl_s8(vld1_s8(b))};
    }
    static SEEDDELTA_INLINE Factor factor(int16_t a, int16_t b) { return {a, b}; }
    static SEEDDELTA_INLINE Factor factor(const int16_t *two) { return {two[0], two[1]}; }
    static SEEDDELTA_INLINE void add(V *sums, Pair p, Factor f) {
        sums[0] = vmlal_n_s16(vmlal_n_s16(sums[0], vget_low_s16(p.a), f.a), vget_low_s16(p.b), f.b);
        sums[1] = vmlal_n_s16(vmlal_n_s16(sums[1], vget_high_s16(p.a), f.a), vget_high_s16(p.b), f.b);
    }
    static SEEDDELTA_INLINE void order(V *) {} // they are
};

} // namespace
} // namespace seeddelta
