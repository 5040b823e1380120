// Scheme proc_sparse for any instruction set; the definition is in format/proc_sparse.cpp. Include inside an
// instruction-set unit only. A row's kept blocks and their hashed values are made once for all tokens; products of int8
// are summed by pairs of columns, so that 32 columns give the row's 16 partial sums.
#pragma once
#include <xsimd/xsimd.hpp>

#include <utility>

#include "format/proc_sparse.hpp"
#include "format/procedural.hpp"
#include "simd/entries.hpp"
#include "simd/inline.hpp"
#include "simd/kernel_table.hpp"

namespace seeddelta {
namespace {

// Lane i: a[2i] b[2i] + a[2i+1] b[2i+1].
template <class Arch>
SEEDDELTA_INLINE xsimd::batch<int32_t, Arch> pair_products(const int8_t *a, const int16_t *b) {
#if defined(__AVX512BW__)
    const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(a));
    return _mm512_madd_epi16(_mm512_cvtepi8_epi16(x), _mm512_loadu_si512(b));
#elif defined(__AVX2__)
    const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i *>(a));
    return _mm256_madd_epi16(_mm256_cvtepi8_epi16(x), _mm256_loadu_si256(reinterpret_cast<const __m256i *>(b)));
#elif defined(__SSE2__)
    const __m128i x = _mm_loadl_epi64(reinterpret_cast<const __m128i *>(a));
    return _mm_madd_epi16(_mm_srai_epi16(_mm_unpacklo_epi8(x, x), 8),
                          _mm_loadu_si128(reinterpret_cast<const __m128i *>(b)));
#else
    const int16x8_t x = vmovl_s8(vld1_s8(a));
    const int16x8_t y = vld1q_s16(b);
    return vpaddq_s32(vmull_s16(vget_low_s16(x), vget_low_s16(y)), vmull_high_s16(x, y));
#endif
}

template <class Arch>
SEEDDELTA_INLINE xsimd::batch<uint64_t, Arch> mix_batch(xsimd::batch<uint64_t, Arch> z) {
    using U = xsimd::batch<uint64_t, Arch>;
    if constexpr (U::size == 2) { // no product of 64 bits there: scalar ones are faster than what stands in for it
        return U(splitmix64_mix(z.get(0)), splitmix64_mix(z.get(1)));
    }
    z = (z ^ (z >> 30)) * U(0xBF58476D1CE4E5B9ULL);
    z = (z ^ (z >> 27)) * U(0x94D049BB133111EBULL);
    return z ^ (z >> 31);
}

// words[i] = mix(words[i]); n is rounded up to whole registers.
template <class Arch>
SEEDDELTA_INLINE void mix_all(uint64_t *words, int64_t n) {
    using U = xsimd::batch<uint64_t, Arch>;
    for (int64_t i = 0; i < n; i += static_cast<int64_t>(U::size)) {
        mix_batch<Arch>(U::load_aligned(words + i)).store_aligned(words + i);
    }
}

// The base's values in the kept blocks, one after another, as int8 in the memory of words. keys is scratch; both are
// 64-byte aligned and have room for whole registers.
template <class Arch>
inline void proc_hash(const seeddelta_ctx &ctx, int64_t row, const int32_t *columns, int64_t kept, uint64_t *keys,
                      uint64_t *words) {
    using U = xsimd::batch<uint64_t, Arch>;
    constexpr auto lanes = static_cast<int64_t>(U::size);
    const int64_t per_block = ctx.residual_block / 8; // 4 or 8
    const int shift = per_block == 4 ? 5 : 6;
    const uint64_t row_key = splitmix64_mix(ctx.base_seed + kGoldenGamma * (static_cast<uint64_t>(row) + 1));
    for (int64_t e = 0; e < kept; ++e) {
        keys[e] = row_key + kGoldenGamma * (static_cast<uint64_t>(columns[e] >> shift) + 1);
    }
    mix_all<Arch>(keys, kept);
    alignas(64) uint64_t steps[8]; // by the words of a block, twice where it has four
    for (int64_t i = 0; i < 8; ++i) {
        steps[i] = kGoldenGamma * (static_cast<uint64_t>(i % per_block) + 1);
    }
    for (int64_t i = 0; i < kept * per_block; i += lanes) {
        // word i % per_block of block i / per_block; a register has words of one block, or of two
        const int64_t e = i / per_block;
        U key(keys[e]);
        if constexpr (lanes > 4) {
            const uint64_t next = per_block == 4 ? keys[e + 1] : keys[e]; // beyond the last block it is not used
            key = U(keys[e], keys[e], keys[e], keys[e], next, next, next, next);
        }
        const U state = key + U::load_unaligned(steps + i % per_block);
        // 2 (b & 63) - 63 in each of eight bytes: plus 64 it is 1 .. 127, and the high bit keeps borrows inside
        const U word = mix_batch<Arch>(state);
        const U biased = ((word & U(0x3F3F3F3F3F3F3F3FULL)) << 1) | U(0x8181818181818181ULL);
        ((biased - U(0x4040404040404040ULL)) ^ U(0x8080808080808080ULL)).store_aligned(words + i);
    }
}

// The places of the bits of a byte that are set, ascending; the rest is 0.
struct SetBits {
    uint8_t place[256][8] = {};
    constexpr SetBits() {
        for (int byte = 0; byte < 256; ++byte) {
            for (int bit = 0, count = 0; bit < 8; ++bit) {
                if ((byte >> bit & 1) != 0) {
                    place[byte][count++] = static_cast<uint8_t>(bit);
                }
            }
        }
    }
};
constexpr SetBits kSetBits;

// A row's kept blocks, or those of them that are multiplied: their first columns, weights, and hashed values (or null).
struct ProcRow {
    const int32_t *columns;
    const int8_t *values;
    const int8_t *hashed;
    const int32_t *entries; // their places among the weights; null: 0, 1, 2, ...
    int64_t kept;
};

// reduce_sums of `Count` sets of partial sums; four are added side by side.
template <int Count>
SEEDDELTA_INLINE void reduce_sets(const float (*sums)[kSumLanes], float *out) {
    if constexpr (Count == 4) {
        typedef float Four __attribute__((vector_size(16)));
        Four half[4];
        for (int i = 0; i < 4; ++i) {
            Four part[4];
            __builtin_memcpy(part, sums[i], sizeof(part));
            half[i] = (part[0] + part[2]) + (part[1] + part[3]);
        }
        const Four a = __builtin_shufflevector(half[0], half[1], 0, 4, 2, 6);
        const Four b = __builtin_shufflevector(half[0], half[1], 1, 5, 3, 7);
        const Four c = __builtin_shufflevector(half[2], half[3], 0, 4, 2, 6);
        const Four d = __builtin_shufflevector(half[2], half[3], 1, 5, 3, 7);
        const Four first = __builtin_shufflevector(a, c, 0, 1, 4, 5) + __builtin_shufflevector(a, c, 2, 3, 6, 7);
        const Four second = __builtin_shufflevector(b, d, 0, 1, 4, 5) + __builtin_shufflevector(b, d, 2, 3, 6, 7);
        const Four all = first + second;
        __builtin_memcpy(out, &all, sizeof(all));
    } else {
        for (int i = 0; i < Count; ++i) {
            float set[kSumLanes];
            __builtin_memcpy(set, sums[i], sizeof(set));
            out[i] = reduce_sums(set);
        }
    }
}

// out[r, t] = the sum of the products of rows' blocks with tokens, scaled by the activations' groups. Rows keep as many
// blocks, so several of them, or several tokens, keep the additions of one from waiting for each other. With a mask
// rows have different numbers; what some have more than others they add alone. Rows are numbers known to the compiler:
// the sums stay in registers.
template <class Arch, int Rows, int Tokens, int Block, bool Masked>
SEEDDELTA_INLINE void proc_products(const ProcRow *rows, bool hashed, const int16_t *q, const float *scale,
                                    int64_t stride, float *out) {
    using F = xsimd::batch<float, Arch>;
    using P = PartialSums<Arch>;
    constexpr int64_t step = 2 * P::kLanes; // columns of a register
    static_assert(kGroup == 64);
    const int64_t groups = stride / kGroup;
    P sum[Rows][Tokens];
    const auto add = [&]<int Row>(int64_t e) SEEDDELTA_INLINE_LAMBDA {
        const int64_t column = rows[Row].columns[e];
        const int64_t entry = !Masked || hashed ? e : rows[Row].entries[e];
        const int8_t *values = (hashed ? rows[Row].hashed : rows[Row].values) + entry * Block;
        for (int t = 0; t < Tokens; ++t) {
            const F d(scale[t * groups + (column >> 6)]);
            for (int64_t r = 0; r < P::kRegisters; ++r) {
                const int16_t *x = q + t * stride + column + r * step;
                auto products = pair_products<Arch>(values + r * step, x);
                if constexpr (Block == 64) {
                    products = products + pair_products<Arch>(values + r * step + 32, x + 32);
                }
                sum[Row][t].sum[r] = sum[Row][t].sum[r] + xsimd::to_float(products) * d;
            }
        }
    };
    const auto add_all = [&]<int... Row>(std::integer_sequence<int, Row...>) SEEDDELTA_INLINE_LAMBDA {
        int64_t common = rows[0].kept;
        if constexpr (Masked) {
            ((common = rows[Row].kept < common ? rows[Row].kept : common), ...);
        }
        for (int64_t e = 0; e < common; ++e) {
            (add.template operator()<Row>(e), ...);
        }
        if constexpr (Masked) {
            const auto add_rest = [&]<int One>() SEEDDELTA_INLINE_LAMBDA {
                for (int64_t e = common; e < rows[One].kept; ++e) {
                    add.template operator()<One>(e);
                }
            };
            (add_rest.template operator()<Row>(), ...);
        }
    };
    add_all(std::make_integer_sequence<int, Rows>{});
    alignas(64) float sets[Rows * Tokens][kSumLanes];
    for (int row = 0; row < Rows; ++row) {
        for (int t = 0; t < Tokens; ++t) {
            sum[row][t].store(sets[row * Tokens + t]);
        }
    }
    reduce_sets<Rows * Tokens>(sets, out);
}

// Rows from `row` on, tokens from `token` on; q are the tokens' activations as 16-bit integers.
template <class Arch, int Rows, int Tokens, int Block, bool Masked>
inline bool proc_outputs(const seeddelta_ctx &ctx, const Activations &a, int64_t row, const ProcRow *rows,
                         const int16_t *q, const float *row_scale, int64_t token, float *y, int64_t y_stride) {
    const float *scale = a.scale + token * (a.stride / kGroup);
    float acc[Rows * Tokens] = {};
    float res[Rows * Tokens];
    proc_products<Arch, Rows, Tokens, Block, Masked>(rows, false, q, scale, a.stride, res);
    if (rows[0].hashed != nullptr) {
        proc_products<Arch, Rows, Tokens, Block, Masked>(rows, true, q, scale, a.stride, acc);
    }
    bool finite = true;
    for (int r = 0; r < Rows; ++r) {
        const float value_scale = half_to_float(ctx.residual_scale[row + r]);
        for (int t = 0; t < Tokens; ++t) {
            const int i = r * Tokens + t;
            const float out = row_scale[r] * (acc[i] * ctx.base_scale + res[i] * value_scale);
            finite &= (__builtin_bit_cast(uint32_t, out) & 0x7F800000U) != 0x7F800000U;
            y[a.place(token + t) * y_stride + row + r] = out;
        }
    }
    return finite;
}

template <class Arch, int Block, bool Masked>
inline bool proc_rows(const seeddelta_ctx &ctx, const Activations &a, int64_t row0, int64_t count, const ProcRow *rows,
                      int16_t *q, const float *row_scale, float *y, int64_t y_stride) {
    constexpr int kTogether = 4;
    bool finite = true;
    for (int64_t token = 0; token < a.n_tokens;) {
        const int64_t tokens = a.n_tokens - token < kTogether ? 1 : kTogether;
        for (int64_t i = 0; i < tokens * a.stride; ++i) {
            q[i] = a.q[token * a.stride + i];
        }
        int64_t r = 0;
        if (tokens == kTogether) {
            for (; r < count; ++r) {
                finite &= proc_outputs<Arch, 1, kTogether, Block, Masked>(ctx, a, row0 + r, rows + r, q, row_scale + r,
                                                                          token, y, y_stride);
            }
        } else {
            for (; r + kTogether <= count; r += kTogether) {
                finite &= proc_outputs<Arch, kTogether, 1, Block, Masked>(ctx, a, row0 + r, rows + r, q, row_scale + r,
                                                                          token, y, y_stride);
            }
            for (; r < count; ++r) {
                finite &= proc_outputs<Arch, 1, 1, Block, Masked>(ctx, a, row0 + r, rows + r, q, row_scale + r, token,
                                                                  y, y_stride);
            }
        }
        token += tokens;
    }
    return finite;
}

// The first columns of the blocks of a byte's set bits, of which `first` is that of the lowest one. No branch on a bit:
// what is too much is overwritten. Returns how many there are.
SEEDDELTA_INLINE int64_t list_byte(uint8_t bits, int32_t first, int32_t width, int32_t *columns) {
    const uint8_t *place = kSetBits.place[bits];
    int32_t some[8];
    for (int i = 0; i < 8; ++i) {
        some[i] = first + place[i] * width;
    }
    __builtin_memcpy(columns, some, sizeof(some));
    return __builtin_popcount(bits);
}

// The first columns of all kept blocks of a row.
inline void list_kept(const uint8_t *map, int64_t bytes, int64_t block, int32_t *columns) {
    int64_t entry = 0;
    for (int64_t byte = 0; byte < bytes; ++byte) {
        const uint8_t bits = map[byte]; // a byte that is not read again: stores may change it for all we know
        entry += list_byte(bits, static_cast<int32_t>(8 * byte * block), static_cast<int32_t>(block), columns + entry);
    }
}

// Those of them that are in `mask`, and their places among the kept ones. Returns how many there are.
inline int64_t list_masked(const uint8_t *map, const uint8_t *mask, int64_t bytes, int64_t block, int32_t *columns,
                           int32_t *entries) {
    const int shift = block == 32 ? 5 : 6;
    int64_t found = 0;
    int32_t before = 0;
    for (int64_t at = 0; at < bytes; at += 8) {
        const int64_t here = bytes - at < 8 ? bytes - at : 8;
        uint64_t kept = 0;
        uint64_t both = 0;
        __builtin_memcpy(&kept, map + at, static_cast<size_t>(here));
        __builtin_memcpy(&both, mask + at, static_cast<size_t>(here));
        both &= kept;
        const int64_t first = found;
        for (int64_t byte = 0; byte < here; ++byte) {
            found += list_byte(static_cast<uint8_t>(both >> (8 * byte)), static_cast<int32_t>(8 * (at + byte) * block),
                               static_cast<int32_t>(block), columns + found);
        }
        for (int64_t e = first; e < found; ++e) {
            const uint64_t below = (uint64_t{1} << (columns[e] >> shift & 63)) - 1;
            entries[e] = before + __builtin_popcountll(kept & below);
        }
        before += __builtin_popcountll(kept);
    }
    return found;
}

// The rows of one tile for all tokens. Returns false when an output is NaN or infinite.
template <class Arch>
inline bool proc_tile(const seeddelta_ctx &ctx, const Activations &a, int64_t row0, int64_t rows,
                      const float *row_scale, uint8_t *panel, float *y, int64_t y_stride) {
    // of the panel's 32 bytes a column: 8 for four tokens, 16 for the hashed values of all rows, 1/4 for the keys of
    // one, 2 for the columns of all, 2 for their places under a mask
    const int64_t padded = (ctx.n_in + 2 * kGroup) / kGroup * kGroup;
    auto *q = reinterpret_cast<int16_t *>(panel);
    uint8_t *hashed = panel + 8 * padded;
    auto *keys = reinterpret_cast<uint64_t *>(hashed + kTileRows * padded);
    auto *columns = reinterpret_cast<int32_t *>(hashed + (kTileRows + 1) * padded);
    int32_t *entries = columns + kTileRows * (padded / 32) + 8; // what is too much of the last row's lies in between
    const int64_t block = ctx.residual_block;
    const int64_t bytes = proc_map_bytes(ctx);
    ProcRow list[kTileRows];
    for (int64_t r = 0; r < rows; ++r) {
        const int64_t row = row0 + r;
        int32_t *own = columns + r * (padded / 32);
        const uint8_t *map = ctx.block_map + row * bytes;
        list[r] = {own, ctx.residual_vals_i8 + row * ctx.residual_size * block, nullptr, nullptr, ctx.residual_size};
        if (a.blocks == nullptr) {
            list_kept(map, bytes, block, own);
        } else {
            int32_t *places = entries + r * (padded / 32);
            list[r].kept = list_masked(map, a.blocks, bytes, block, own, places);
            list[r].entries = places;
        }
        if (ctx.base == BaseKind::prng_block) {
            auto *words = reinterpret_cast<uint64_t *>(hashed + r * padded);
            proc_hash<Arch>(ctx, row, own, list[r].kept, keys, words);
            list[r].hashed = reinterpret_cast<const int8_t *>(words);
        }
    }
    const auto multiply = [&]<int Block, bool Masked>() {
        return proc_rows<Arch, Block, Masked>(ctx, a, row0, rows, list, q, row_scale, y, y_stride);
    };
    if (a.blocks == nullptr) {
        return block == 32 ? multiply.template operator()<32, false>() : multiply.template operator()<64, false>();
    }
    return block == 32 ? multiply.template operator()<32, true>() : multiply.template operator()<64, true>();
}

} // namespace
} // namespace seeddelta
