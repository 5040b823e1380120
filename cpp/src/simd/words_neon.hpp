// The words of kernels on NEON, 128 bits; see words_avx2.hpp. Include inside an instruction-set unit only. Products are
// of signed bytes: nothing is biased.
#pragma once
#include <arm_neon.h>

#include "format/trellis.hpp"
#include "simd/inline.hpp"

namespace seeddelta {
namespace {

struct WordsNeon {
    using V = uint8x16_t;
    using F = float32x4_t;
    using Multiplier = uint16_t;
    static constexpr int64_t kTokens = 4;
    static constexpr int kTiles = 1;
    static constexpr int kParts = 2;
    static constexpr int kBias = 0;
    static constexpr bool kFetchesUnits = false; // not measured

    static SEEDDELTA_INLINE V of_16(uint16x8_t v) { return vreinterpretq_u8_u16(v); }
    static SEEDDELTA_INLINE uint16x8_t to_16(V v) { return vreinterpretq_u16_u8(v); }

    static SEEDDELTA_INLINE V load(const void *p) { return vld1q_u8(static_cast<const uint8_t *>(p)); }
    static SEEDDELTA_INLINE void store(void *p, V v) { vst1q_u8(static_cast<uint8_t *>(p), v); }
    static SEEDDELTA_INLINE F load_floats(const float *p) { return vld1q_f32(p); }
    static SEEDDELTA_INLINE void store_floats(float *p, F f) { vst1q_f32(p, f); }
    static SEEDDELTA_INLINE F no_floats() { return vdupq_n_f32(0.0F); }
    static SEEDDELTA_INLINE V repeat(int32_t bits) { return vreinterpretq_u8_s32(vdupq_n_s32(bits)); }
    static SEEDDELTA_INLINE V add_bytes(V a, V b) { return vaddq_u8(a, b); }

    static SEEDDELTA_INLINE V table(const int8_t *t) { return vreinterpretq_u8_s8(vld1q_s8(t)); }
    static SEEDDELTA_INLINE V look_up(V bytes, V first, V second) {
        return add_bytes(vqtbl1q_u8(first, vshrq_n_u8(bytes, 4)), vqtbl1q_u8(second, vandq_u8(bytes, vdupq_n_u8(15))));
    }

    static SEEDDELTA_INLINE V load_states(const uint16_t *const *words, int64_t at) {
        return of_16(vld1q_u16(words[0] + at));
    }
    template <int Shift>
    static SEEDDELTA_INLINE V concat(V a, V b) {
        return of_16(vsriq_n_u16(vshlq_n_u16(to_16(a), Shift), to_16(b), 16 - Shift));
    }
    template <int Shift>
    static SEEDDELTA_INLINE V shift_right(V a) {
        return of_16(vshrq_n_u16(to_16(a), Shift));
    }
    static SEEDDELTA_INLINE Multiplier multiplier(uint16_t m) { return m; }
    static SEEDDELTA_INLINE V multiply(V states, Multiplier m) { return of_16(vmulq_n_u16(to_16(states), m)); }
    static SEEDDELTA_INLINE V high_bytes(V a, V b) { return vtrn2q_u8(a, b); }
    static SEEDDELTA_INLINE void interleave(V a, V b, V *out) {
        out[0] = of_16(vzip1q_u16(to_16(a), to_16(b)));
        out[1] = of_16(vzip2q_u16(to_16(a), to_16(b)));
    }

    static SEEDDELTA_INLINE F half(const uint16_t *p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }

    static SEEDDELTA_INLINE V start(int32_t) { return vdupq_n_u8(0); }
    static SEEDDELTA_INLINE V four(const int8_t *q) {
        int32_t bits;
        __builtin_memcpy(&bits, q, 4);
        return repeat(bits);
    }
    static SEEDDELTA_INLINE F add_group(F total, V sums, float scale) {
        return vaddq_f32(total, vmulq_f32(vcvtq_f32_s32(vreinterpretq_s32_u8(sums)), vdupq_n_f32(scale)));
    }
    template <class R>
    static SEEDDELTA_INLINE void order(R *) {} // interleave keeps it
    static SEEDDELTA_INLINE int32_t sum(V sums) { return vaddvq_s32(vreinterpretq_s32_u8(sums)); }
};

// Columns without trellis, see columns.hpp. A product by one number needs no interleaved pairs.
struct ColumnsNeon : WordsNeon {
    using V = int32x4_t;
    static constexpr int64_t kTokens = 4;
    static constexpr int64_t kRegisters = 4;
    struct Pair {
        int16x8_t a, b;
    };
    struct Factor {
        int16_t a, b;
    };

    static SEEDDELTA_INLINE Pair pair(const int8_t *a, const int8_t *b) {
        return {vmovl_s8(vld1_s8(a)), vmovl_s8(vld1_s8(b))};
    }
    static SEEDDELTA_INLINE Factor factor(int16_t a, int16_t b) { return {a, b}; }
    static SEEDDELTA_INLINE Factor factor(const int16_t *two) { return {two[0], two[1]}; }
    static SEEDDELTA_INLINE void add(V *sums, Pair p, Factor f) {
        sums[0] = vmlal_n_s16(vmlal_n_s16(sums[0], vget_low_s16(p.a), f.a), vget_low_s16(p.b), f.b);
        sums[1] = vmlal_n_s16(vmlal_n_s16(sums[1], vget_high_s16(p.a), f.a), vget_high_s16(p.b), f.b);
    }
};

// With `dot`, of `Dot` for signed bytes
template <class Dot>
struct NeonWith : WordsNeon {
    static SEEDDELTA_INLINE V dot(V sums, V values, V x) {
        return vreinterpretq_u8_s32(
            Dot::dot(vreinterpretq_s32_u8(sums), vreinterpretq_s8_u8(values), vreinterpretq_s8_u8(x)));
    }
};

} // namespace
} // namespace seeddelta
