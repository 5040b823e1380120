// NEON unit: the baseline of AArch64. Intrinsics where xsimd has no word: byte look-up, widening byte products.
#include <arm_neon.h>

#include "format/float16.hpp"
#include "simd/table.hpp"
#include "simd/words_neon.hpp"

namespace seeddelta {
namespace {

using Arch = xsimd::neon64;

inline int64_t popcount_neon(const uint64_t *words, int64_t n) {
    int64_t count = 0;
    for (int64_t i = 0; i < n; ++i) {
        count += vaddv_u8(vcnt_u8(vcreate_u8(words[i])));
    }
    return count;
}

struct Dot {
    // 16-bit sums of two products: 2 * 127 * 127 < 2^15
    static SEEDDELTA_INLINE int32x4_t dot(int32x4_t sum, int8x16_t values, int8x16_t x) {
        const int16x8_t low = vmull_s8(vget_low_s8(values), vget_low_s8(x));
        const int16x8_t high = vmull_high_s8(values, x);
        return vpadalq_s16(sum, vpaddq_s16(low, high));
    }
};

struct AttentionOps {
    using F = xsimd::batch<float, Arch>;
    static SEEDDELTA_INLINE F half(const uint16_t *p) { return F(vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)))); }
    static SEEDDELTA_INLINE F words(const int16_t *p) { return F(vcvtq_f32_s32(vmovl_s16(vld1_s16(p)))); }
    static SEEDDELTA_INLINE float32x4_t fold(const F *r) {
        return vaddq_f32(vaddq_f32(r[0], r[2]), vaddq_f32(r[1], r[3]));
    }
    static SEEDDELTA_INLINE F bytes(const int8_t *p) {
        int32_t four = 0;
        __builtin_memcpy(&four, p, sizeof(four));
        const int8x8_t b = vreinterpret_s8_s32(vdup_n_s32(four));
        return F(vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(b)))));
    }
    static SEEDDELTA_INLINE float half_one(uint16_t h) { return half_to_float(h); }
    static SEEDDELTA_INLINE F fused(F a, F b, F c) { return F(vfmaq_f32(c, a, b)); }
    static constexpr int kRegisters = 32;
    static constexpr int kValues = 4;
    static constexpr int kTileRows = 6;
    static constexpr int kTileRegisters = 4;
    static SEEDDELTA_INLINE void sum4(const F *a, const F *b, const F *c, const F *d, float *out) {
        sum_of_four(fold(a), fold(b), fold(c), fold(d), out);
    }
    // lane i + lane i + 2, then + 1, of every key
    static SEEDDELTA_INLINE void sum_of_four(float32x4_t a, float32x4_t b, float32x4_t c, float32x4_t d, float *out) {
        const float32x4_t ab_low = vzip1q_f32(a, b); // a0 b0 a1 b1
        const float32x4_t ab_high = vzip2q_f32(a, b);
        const float32x4_t cd_low = vzip1q_f32(c, d);
        const float32x4_t cd_high = vzip2q_f32(c, d);
        const float32x4_t ab = vaddq_f32(ab_low, ab_high); // a0+a2 b0+b2 a1+a3 b1+b3
        const float32x4_t cd = vaddq_f32(cd_low, cd_high);
        const float32x4_t even = vcombine_f32(vget_low_f32(ab), vget_low_f32(cd));
        const float32x4_t odd = vcombine_f32(vget_high_f32(ab), vget_high_f32(cd));
        vst1q_f32(out, vaddq_f32(even, odd));
    }
};

} // namespace

const KernelTable &kernels_neon() {
    static const KernelTable table{
        .name = "neon",
        .linear = linear_simd<Arch, WordsNeon<Dot>, ColumnsNeon>(),
        .attention = attention_simd<Arch, AttentionOps>(),
        .gating = {.count_above = count_above_simd<Arch>, .bitmaps = bitmaps_simd<Arch>, .popcount = popcount_neon},
        .encode = {.lane_search = lane_search_simd<Arch, WordsNeon<Dot>>,
                   .subtract_product = subtract_product_simd<Arch>}};
    return table;
}

} // namespace seeddelta
