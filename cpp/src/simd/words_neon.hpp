// The words of kernels on NEON: four registers of 4 rows a line, signed products. Include inside an instruction-set
// unit only. `Dot` adds the products of four neighboring signed bytes to each 32-bit lane.
#pragma once
#include <arm_neon.h>

#include "simd/inline.hpp"
#include "simd/lane_words.hpp"

namespace seeddelta {
namespace {

template <class Dot>
struct WordsNeon : OptionalWords {
    using V = uint8x16_t;
    using F = float32x4_t;
    static constexpr int kParts = 4;
    static constexpr int64_t kDirect = 8;
    static constexpr int kBias = 0;
    static constexpr int direct_parts(int n) { return n > 4 ? 2 : 4; }
    static constexpr int tiles(int) { return 1; }
    static constexpr bool packed(int) { return false; }

    static SEEDDELTA_INLINE V load(const uint8_t *p) { return vld1q_u8(p); }
    static SEEDDELTA_INLINE V low(V both) { return vandq_u8(both, vdupq_n_u8(15)); }
    static SEEDDELTA_INLINE V high(V both) { return vshrq_n_u8(both, 4); }
    static SEEDDELTA_INLINE V table(const int8_t *t) { return vreinterpretq_u8_s8(vld1q_s8(t)); }
    static SEEDDELTA_INLINE V look(V table, V index) { return vqtbl1q_u8(table, index); }
    static SEEDDELTA_INLINE V add(V a, V b) { return vaddq_u8(a, b); }
    static constexpr bool kTakes = false;
    template <int Bit>
    static SEEDDELTA_INLINE V add_bit(V values, V plane, V amount) {
        return vaddq_u8(values, vandq_u8(vtstq_u8(plane, vdupq_n_u8(1U << Bit)), amount));
    }
    static SEEDDELTA_INLINE V wrap(V sum) { return vandq_u8(sum, vdupq_n_u8(15)); } // TBL gives 0 beyond its table
    static SEEDDELTA_INLINE V start(int32_t) { return vdupq_n_u8(0); }
    static SEEDDELTA_INLINE V four(const int8_t *q) {
        uint32_t bits;
        __builtin_memcpy(&bits, q, 4);
        return vreinterpretq_u8_u32(vdupq_n_u32(bits));
    }
    static SEEDDELTA_INLINE void keep(V &) {}
    static SEEDDELTA_INLINE V dot(V sum, V values, V x) {
        return vreinterpretq_u8_s32(
            Dot::dot(vreinterpretq_s32_u8(sum), vreinterpretq_s8_u8(values), vreinterpretq_s8_u8(x)));
    }
    static SEEDDELTA_INLINE void store(uint8_t *out, V v) { vst1q_u8(out, v); }
    static SEEDDELTA_INLINE F load_floats(const float *p) { return vld1q_f32(p); }
    static SEEDDELTA_INLINE F no_floats() { return vdupq_n_f32(0.0F); }
    static SEEDDELTA_INLINE F add_group(F total, V sum, float scale) {
        return vaddq_f32(total, vmulq_f32(vcvtq_f32_s32(vreinterpretq_s32_u8(sum)), vdupq_n_f32(scale)));
    }
    static SEEDDELTA_INLINE void store_rows(float *out, F total) { vst1q_f32(out, total); }

    // For lane_columns.hpp
    static constexpr int kLanes = 1;
    static SEEDDELTA_INLINE void hold(V &sum) { asm("" : "+w"(sum)); }
    static SEEDDELTA_INLINE void zip8(V a, V b, V &low, V &high) {
        low = vzip1q_u8(a, b);
        high = vzip2q_u8(a, b);
    }
    static SEEDDELTA_INLINE void zip16(V a, V b, V &low, V &high) {
        low = vreinterpretq_u8_u16(vzip1q_u16(vreinterpretq_u16_u8(a), vreinterpretq_u16_u8(b)));
        high = vreinterpretq_u8_u16(vzip2q_u16(vreinterpretq_u16_u8(a), vreinterpretq_u16_u8(b)));
    }
    template <int Bytes>
    static SEEDDELTA_INLINE V gather(const uint8_t *const *p) {
        uint8_t part[16] = {};
        __builtin_memcpy(part, p[0], Bytes);
        return vld1q_u8(part);
    }
    static SEEDDELTA_INLINE V lanes_of(const int8_t *q) { return four(q); }
    static SEEDDELTA_INLINE V fold(const V *sum) { return *sum; }

    // For lane_search.hpp: the upper halves of products of 16 bits
    static SEEDDELTA_INLINE uint16x8_t upper_products(uint16x8_t a, uint16x8_t b) {
        const uint32x4_t low_half = vmull_u16(vget_low_u16(a), vget_low_u16(b));
        const uint32x4_t high_half = vmull_high_u16(a, b);
        return vuzp2q_u16(vreinterpretq_u16_u32(low_half), vreinterpretq_u16_u32(high_half));
    }
};

// Of columns.hpp
struct ColumnsNeon {
    using F = float32x4_t;
    static constexpr int64_t kTokens = 4;
    static constexpr int64_t kRegisters = 4;

    static SEEDDELTA_INLINE F half(const uint16_t *p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
};

} // namespace
} // namespace seeddelta
