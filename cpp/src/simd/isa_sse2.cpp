// SSE2 unit: the baseline of x86-64. No byte look-up and no byte products here: values are looked up one by one and
// kept as 16-bit integers, two columns a PMADDWD.
#include <emmintrin.h>

#include "format/float16.hpp"
#include "simd/activations.hpp"
#include "simd/attention_x86.hpp"
#include "simd/columns.hpp"
#include "simd/columns_scalar.hpp"
#include "simd/compute.hpp"
#include "simd/lane_search.hpp"
#include "simd/trellis_columns_128.hpp"
#include "simd/viterbi.hpp"
#include "simd/words_sse2.hpp"

namespace seeddelta {
namespace {

struct Tile128 {
    static constexpr int64_t kTokens = 1;
    static constexpr int64_t kTiles = 1;

    // panel: int16 [columns / 2][16 rows][2 columns]
    static void decode(const seeddelta_ctx &ctx, int64_t tile, uint8_t *panel) {
        const uint16_t *words = ctx.codes + tile * ctx.words() * kTileRows;
        auto *out = reinterpret_cast<int16_t *>(panel);
        const auto per_step = static_cast<int64_t>(ctx.values_per_step);
        for (int64_t column = 0; column < ctx.steps() * per_step; ++column) {
            const int64_t bit = column / per_step * ctx.step_bits;
            const uint16_t *word = words + bit / 16 * kTileRows;
            const int shift = static_cast<int>(bit % 16);
            const __m128i multiplier = _mm_set1_epi16(static_cast<short>(ctx.multiplier[column % per_step]));
            alignas(16) uint16_t hash[kTileRows];
            for (int half = 0; half < 2; ++half) {
                __m128i state = _mm_loadu_si128(reinterpret_cast<const __m128i *>(word + 8 * half));
                if (shift != 0) {
                    const __m128i next =
                        _mm_loadu_si128(reinterpret_cast<const __m128i *>(word + kTileRows + 8 * half));
                    state = _mm_or_si128(_mm_sll_epi16(state, _mm_cvtsi32_si128(shift)),
                                         _mm_srl_epi16(next, _mm_cvtsi32_si128(16 - shift)));
                }
                _mm_store_si128(reinterpret_cast<__m128i *>(hash + 8 * half), _mm_mullo_epi16(state, multiplier));
            }
            int16_t *pair = out + column / 2 * 2 * kTileRows + column % 2;
            for (int64_t row = 0; row < kTileRows; ++row) {
                pair[2 * row] =
                    static_cast<int16_t>(kTrellisTable1[hash[row] >> 12] + kTrellisTable2[(hash[row] >> 8) & 15]);
            }
        }
    }

    static void multiply_panel(const seeddelta_ctx &ctx, const Activations &a, const uint8_t *panel, int64_t token,
                               int64_t count, float (*acc)[kTileRows]) {
        const int64_t columns = ctx.steps() * ctx.values_per_step;
        for (int64_t t = 0; t < count; ++t) {
            const int8_t *q = a.q + (token + t) * a.stride;
            const float *scale = a.scale + (token + t) * (a.stride / kGroup);
            __m128 total[4] = {_mm_setzero_ps(), _mm_setzero_ps(), _mm_setzero_ps(), _mm_setzero_ps()};
            for (int64_t start = 0; start < columns; start += kGroup) {
                const int64_t end = columns < start + kGroup ? columns : start + kGroup;
                __m128i sum[4] = {};
                for (int64_t column = start; column < end; column += 2) {
                    const auto pair = static_cast<uint32_t>(static_cast<uint16_t>(q[column])) |
                                      static_cast<uint32_t>(static_cast<uint16_t>(q[column + 1])) << 16;
                    const __m128i x = _mm_set1_epi32(static_cast<int>(pair));
                    const auto *v = reinterpret_cast<const __m128i *>(panel) + column / 2 * 4;
                    for (int i = 0; i < 4; ++i) {
                        sum[i] = _mm_add_epi32(sum[i], _mm_madd_epi16(_mm_loadu_si128(v + i), x));
                    }
                }
                const __m128 d = _mm_set1_ps(scale[start / kGroup]);
                for (int i = 0; i < 4; ++i) {
                    total[i] = _mm_add_ps(total[i], _mm_mul_ps(_mm_cvtepi32_ps(sum[i]), d));
                }
            }
            for (int i = 0; i < 4; ++i) {
                _mm_store_ps(acc[t] + 4 * i, total[i]);
            }
        }
    }

    static void multiply_codes(const seeddelta_ctx &ctx, int64_t tile, int64_t, const Activations &a, uint8_t *panel,
                               float (*acc)[kTileRows]) {
        decode(ctx, tile, panel);
        multiply_panel(ctx, a, panel, 0, 1, acc);
    }

    static int32_t dot64(const uint8_t *values, const int8_t *q) {
        __m128i sum = _mm_setzero_si128();
        for (int i = 0; i < 4; ++i) {
            const __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i *>(values) + i);
            const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i *>(q) + i);
            const __m128i sign = _mm_cmpgt_epi8(_mm_setzero_si128(), x);
            sum = _mm_add_epi32(sum,
                                _mm_madd_epi16(_mm_unpacklo_epi8(v, _mm_setzero_si128()), _mm_unpacklo_epi8(x, sign)));
            sum = _mm_add_epi32(sum,
                                _mm_madd_epi16(_mm_unpackhi_epi8(v, _mm_setzero_si128()), _mm_unpackhi_epi8(x, sign)));
        }
        sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4E));
        sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xB1));
        return _mm_cvtsi128_si32(sum);
    }
};

// 16-bit words of the Viterbi search
struct Words {
    using U = xsimd::batch<uint16_t, xsimd::sse2>;
    static inline U high(U a, U b) { return _mm_mulhi_epu16(a, b); }

    // lane i = p[i >> K]
    template <int K>
    static xsimd::batch<uint16_t, xsimd::sse2> expand(const uint16_t *p) {
        alignas(16) uint16_t lanes[8];
        for (int i = 0; i < 8; ++i) {
            lanes[i] = p[i >> K];
        }
        return xsimd::batch<uint16_t, xsimd::sse2>::load_aligned(lanes);
    }
};

using ColumnsSse2 = ColumnsX86<WordsSse2, 4, 2>;

struct AttentionOps {
    using F = xsimd::batch<float, xsimd::sse2>;
    // half_to_float of format/float16.hpp
    static SEEDDELTA_INLINE F half(const uint16_t *p) {
        const __m128i h =
            _mm_unpacklo_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(p)), _mm_setzero_si128());
        const __m128i magnitude = _mm_slli_epi32(_mm_and_si128(h, _mm_set1_epi32(0x7FFF)), 13);
        const __m128 scaled = _mm_mul_ps(_mm_castsi128_ps(magnitude), _mm_set1_ps(0x1p112F));
        const __m128i exponent = _mm_set1_epi32(0x7C00);
        const __m128i special =
            _mm_and_si128(_mm_cmpeq_epi32(_mm_and_si128(h, exponent), exponent), _mm_set1_epi32(0x7F800000));
        const __m128i sign = _mm_slli_epi32(_mm_and_si128(h, _mm_set1_epi32(0x8000)), 16);
        return _mm_or_ps(scaled, _mm_castsi128_ps(_mm_or_si128(special, sign)));
    }
    static SEEDDELTA_INLINE F words(const int16_t *p) {
        const __m128i four = _mm_loadl_epi64(reinterpret_cast<const __m128i *>(p));
        return _mm_cvtepi32_ps(_mm_srai_epi32(_mm_unpacklo_epi16(four, four), 16));
    }
    static SEEDDELTA_INLINE __m128 fold(const F *r) {
        return _mm_add_ps(_mm_add_ps(r[0], r[2]), _mm_add_ps(r[1], r[3]));
    }
    static SEEDDELTA_INLINE F bytes(const int8_t *p) {
        int32_t four = 0;
        __builtin_memcpy(&four, p, sizeof(four));
        const __m128i b = _mm_cvtsi32_si128(four);
        const __m128i w = _mm_unpacklo_epi8(b, b);
        return _mm_cvtepi32_ps(_mm_srai_epi32(_mm_unpacklo_epi16(w, w), 24));
    }
    static SEEDDELTA_INLINE float half_one(uint16_t h) { return half_to_float(h); }
    static SEEDDELTA_INLINE void sum4(const F *a, const F *b, const F *c, const F *d, float *out) {
        sum_of_four(fold(a), fold(b), fold(c), fold(d), out);
    }
    static constexpr int kValues = 2;
};

} // namespace

const KernelTable &kernels_sse2() {
    static const KernelTable table{.name = "sse2",
                                   .linear = {.rotate = rotate_simd<xsimd::sse2>,
                                              .rotate_back = rotate_back_simd<xsimd::sse2>,
                                              .quantize = quantize_simd<xsimd::sse2>,
                                              .prepare = prepare_simd<xsimd::sse2>,
                                              .compute = compute_simd<xsimd::sse2, Tile128, void>,
                                              .columns_f16 = columns_f16_simd<xsimd::sse2, ColumnsSse2>,
                                              .columns_i8 = columns_i8_simd<xsimd::sse2, ColumnsSse2>,
                                              .columns_f16_batch = columns_f16_batch_simd<xsimd::sse2, ColumnsSse2>,
                                              .columns_i8_batch = columns_i8_batch_simd<xsimd::sse2, ColumnsSse2>,
                                              .columns_trellis = columns_trellis_simd<Columns128>,
                                              .columns_trellis_many = columns_trellis_many_simd<Columns128>,
                                              .columns_lanes = columns_lanes_scalar,
                                              .columns_lanes_many = columns_lanes_many_scalar},
                                   .attention = {.attend = attend_simd<xsimd::sse2, AttentionOps>,
                                                 .score = attention_scalar().score,
                                                 .popcount = attention_scalar().popcount,
                                                 .estimate = estimate_simd<xsimd::sse2, AttentionOps>,
                                                 .nearness = nearness_simd<xsimd::sse2>,
                                                 .count = count_simd<xsimd::sse2>,
                                                 .above = above_simd<xsimd::sse2>,
                                                 .mass = mass_simd<xsimd::sse2>},
                                   .gating = {.count_above = count_above_simd<xsimd::sse2>,
                                              .bitmaps = bitmaps_simd<xsimd::sse2>,
                                              .popcount = popcount_scalar},
                                   .encode = {.viterbi = viterbi_simd<xsimd::sse2, Words>,
                                              .lane_search = lane_search_simd<xsimd::sse2, Words>,
                                              .subtract_product = subtract_product_scalar}};
    return table;
}

} // namespace seeddelta
