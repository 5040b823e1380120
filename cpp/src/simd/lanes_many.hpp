// Byte lanes for many tokens: a stretch of a tile's columns is decoded once into a panel that stays in the first-level
// cache, and multiplied with all tokens, eight at a time. Include inside an instruction-set unit only.
//
// `Ops` has the words of lanes.hpp and: kFlip (what the bytes of the activations are xored with), base (of the values
// of eight columns, what pair needs of them alone), pair (sums plus the products of eight columns).
#pragma once
#include "simd/lanes.hpp"

namespace seeddelta {
namespace {

template <class Ops>
struct LanePanel {
    using Tile = LaneTile<Ops>;
    // The codes before a stretch.
    struct Codes {
        typename Tile::Before part[Ops::kParts];
        SEEDDELTA_INLINE Codes(const uint8_t *tile, int64_t line) {
            for (int p = 0; p < Ops::kParts; ++p) {
                part[p] = typename Tile::Before(Ops::load(tile + line * kLaneBytes + p * Tile::kBytes));
            }
        }
    };
    using V = typename Ops::V;
    using F = typename Ops::F;
    static constexpr int64_t kBlock = kLaneBlock; // tokens
    static constexpr int64_t kColumns = kLanePanelColumns;
    static constexpr int64_t kQuad = kLaneWalks; // columns of a register's 32-bit lane
    static constexpr int64_t kGroupBytes = kGroup * kBlock;

    struct Decoded {
        uint8_t values[kColumns * kTileRows];
        uint8_t base[kColumns * kTileRows / 2];
    };
    static_assert(sizeof(Decoded) == kLanePanelBytes);

    // The activations of a block of tokens, four columns of one beside those of the next, and what is summed so far.
    struct Block {
        uint8_t *x;    // [groups, kGroup / kQuad, kBlock, kQuad]
        float *scale;  // [groups, kBlock]
        int32_t *bias; // [groups, kBlock]
        float *total;  // [kBlock, kTileRows]
    };

    static Block block(uint8_t *scratch, int64_t groups, int64_t number) {
        uint8_t *x = scratch + sizeof(Decoded) + number * lane_block_bytes(groups);
        uint8_t *scale = x + groups * kGroupBytes;
        uint8_t *bias = scale + groups * kBlock * 4;
        return {x, reinterpret_cast<float *>(scale), reinterpret_cast<int32_t *>(bias),
                reinterpret_cast<float *>(bias + groups * kBlock * 4)};
    }

    // Tokens from `first` on; those that are none are zeros.
    static void pack(const Activations &a, int64_t first, const Block &out) {
        const int64_t groups = a.stride / kGroup;
        for (int64_t g = 0; g < groups; ++g) {
            for (int64_t n = 0; n < kBlock; ++n) {
                const int64_t token = first + n;
                const bool there = token < a.n_tokens;
                const int8_t *q = a.q + (there ? token : 0) * a.stride + g * kGroup;
                for (int64_t quad = 0; quad < kGroup / kQuad; ++quad) {
                    uint32_t four;
                    __builtin_memcpy(&four, q + quad * kQuad, sizeof(four));
                    four = (there ? four : 0) ^ Ops::kFlip;
                    __builtin_memcpy(out.x + g * kGroupBytes + (quad * kBlock + n) * kQuad, &four, sizeof(four));
                }
                out.scale[g * kBlock + n] = there ? a.scale[token * groups + g] : 0.0F;
                out.bias[g * kBlock + n] = there ? a.bias[token * groups + g] : 0;
            }
        }
    }

    // The next `chunks` of the pattern. Tables and codes are copied: stores of bytes may change any other memory.
    template <class Pattern>
    [[gnu::noinline]] static const uint8_t *decode(const uint8_t *codes, const LaneCode &code, Codes &from,
                                                   int64_t chunks, Decoded &out) {
        const typename Tile::template Tables<Pattern> t(code);
        Codes before = from;
        uint8_t *values = out.values;
        uint8_t *base = out.base;
        for (int64_t i = 0; i < chunks; ++i) {
            for (int l = 0; l < Pattern::kLines; ++l) {
                __builtin_prefetch(codes + kLanesAhead + l * kLaneBytes, 0, 2);
            }
            V even[Ops::kParts];
            auto keep = [&](int quad, int p, V v) SEEDDELTA_INLINE_LAMBDA {
                Ops::store(values + quad * kLaneBytes + p * Tile::kBytes, v);
                if (quad % 2 == 0) {
                    even[p] = v;
                } else if constexpr (Ops::kHasBase) {
                    Ops::store(base + quad / 2 * kLaneBytes + p * Tile::kBytes, Ops::base(even[p], v));
                }
            };
            Tile::template line<Pattern, Ops::kParts, 0>(codes, Tile::kBytes, t, before.part, keep);
            codes += Pattern::kLines * kLaneBytes;
            values += Pattern::kQuads * kLaneBytes;
            base += Pattern::kQuads / 2 * kLaneBytes;
        }
        from = before;
        return codes;
    }

    // Columns of `quads` from group `group` on, for N tokens of a block.
    template <int N>
    [[gnu::noinline]] static void multiply(const Decoded &panel, int64_t quads, int64_t group, const Block &b) {
        constexpr int64_t pairs_a_group = kGroup / kQuad / 2;
        for (int part = 0; part < Ops::kParts; ++part) {
            const uint8_t *values = panel.values + part * Tile::kBytes;
            const uint8_t *base = panel.base + part * Tile::kBytes;
            const uint8_t *x = b.x + group * kGroupBytes;
            const float *scale = b.scale + group * kBlock;
            const int32_t *bias = b.bias + group * kBlock;
            F total[N];
            for (int n = 0; n < N; ++n) {
                total[n] = Ops::load_floats(b.total + n * kTileRows + part * Tile::kRows);
            }
            for (int64_t pairs = quads / 2; pairs > 0; pairs -= pairs_a_group) {
                V sum[N];
                for (int n = 0; n < N; ++n) {
                    sum[n] = Ops::start(bias[n]);
                }
                const int64_t count = pairs < pairs_a_group ? pairs : pairs_a_group;
                for (int64_t i = 0; i < count; ++i) {
                    const V v0 = Ops::load(values);
                    const V v1 = Ops::load(values + kLaneBytes);
                    V shared = v0;
                    if constexpr (Ops::kHasBase) {
                        shared = Ops::load(base);
                    }
                    for (int n = 0; n < N; ++n) {
                        sum[n] = Ops::pair(sum[n], v0, v1, shared,
                                           Ops::four(reinterpret_cast<const int8_t *>(x) + n * kQuad),
                                           Ops::four(reinterpret_cast<const int8_t *>(x) + (kBlock + n) * kQuad));
                    }
                    values += 2 * kLaneBytes;
                    base += kLaneBytes;
                    x += 2 * kBlock * kQuad;
                }
                for (int n = 0; n < N; ++n) {
                    total[n] = Ops::add_group(total[n], sum[n], scale[n]);
                }
                scale += kBlock;
                bias += kBlock;
            }
            for (int n = 0; n < N; ++n) {
                Ops::store_rows(b.total + n * kTileRows + part * Tile::kRows, total[n]);
            }
        }
    }

    // A tile for all tokens: total of every block.
    template <class Pattern>
    static void tile(const seeddelta_ctx &ctx, const uint8_t *codes, int64_t n_tokens, int64_t groups,
                     uint8_t *scratch) {
        constexpr int64_t chunks_a_panel = kColumns / (kQuad * Pattern::kQuads);
        auto &panel = *reinterpret_cast<Decoded *>(scratch);
        Codes before(codes, Pattern::loop_line(ctx.lane_lines));
        int64_t chunks = ctx.lane_lines / Pattern::kLines;
        for (int64_t group = 0; chunks > 0; group += kColumns / kGroup) {
            const int64_t count = chunks < chunks_a_panel ? chunks : chunks_a_panel;
            codes = decode<Pattern>(codes, *ctx.lane_code, before, count, panel);
            for (int64_t token = 0; token < n_tokens; token += kBlock) {
                const Block b = block(scratch, groups, token / kBlock);
                if (group == 0) {
                    __builtin_memset(b.total, 0, kBlock * kTileRows * sizeof(float));
                }
                if (n_tokens - token > kBlock / 2) {
                    multiply<kBlock>(panel, count * Pattern::kQuads, group, b);
                } else {
                    multiply<kBlock / 2>(panel, count * Pattern::kQuads, group, b);
                }
            }
            chunks -= count;
        }
    }
};

} // namespace
} // namespace seeddelta
