// Byte lanes for many tokens: a stretch of a tile's columns is decoded once into a panel that stays in the first-level
// cache, and multiplied with all tokens, eight at a time. `Ops` has the words of lanes.hpp. Include inside an
// instruction-set unit only.
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
    static constexpr int64_t kBlock = TokenBatch::kTokens;
    static constexpr int64_t kColumns = kLanePanelColumns;
    static constexpr int64_t kDotGroup = TokenBatch::kDotGroup;
    static_assert(kColumns % (kScaleGroups * kGroup) == 0);
    // Multiplied together: as many sums as registers hold. Where products are added in 16 bits, a register of
    // activations is for two parts.
    static constexpr int kParts = Tile::kHalves ? 2 : 1;
    static constexpr int kTokens = static_cast<int>(kBlock) / kParts;

    struct Decoded {
        uint8_t values[kColumns * kTileRows];
    };
    static_assert(sizeof(Decoded) == kLanePanelBytes);

    // The next `chunks` of the pattern. Tables and codes are copied: stores of bytes may change any other memory.
    template <class Pattern>
    [[gnu::noinline]] static const uint8_t *decode(const uint8_t *codes, const LaneCode &code, Codes &from,
                                                   int64_t chunks, uint8_t *values) {
        const typename Tile::template Tables<Pattern> t(code);
        Codes before = from;
        for (int64_t i = 0; i < chunks; ++i) {
            for (int l = 0; l < Pattern::kLines; ++l) {
                __builtin_prefetch(codes + kLanesAhead + l * kLaneBytes);
            }
            const auto keep = [&](int dot_group, int p, V v) SEEDDELTA_INLINE_LAMBDA {
                Ops::store(values + dot_group * kLaneBytes + p * Tile::kBytes, v);
            };
            Tile::template line<Pattern, Ops::kParts, 0>(codes, Tile::kBytes, t, before.part, keep);
            codes += Pattern::kLines * kLaneBytes;
            values += Pattern::kDotGroups * kLaneBytes;
        }
        from = before;
        return codes;
    }

    // Columns of `dot_groups` from group `group` on, for N tokens of a block from `first` on; Parts at a time.
    template <int N, int Parts>
    [[gnu::noinline]] static void multiply(const Decoded &panel, int64_t dot_groups, int64_t group, const TokenBatch &b,
                                           int64_t first) {
        constexpr int64_t pairs_a_group = kGroup / kDotGroup / 2;
        const auto each = [](auto &&f) SEEDDELTA_INLINE_LAMBDA {
            unrolled<N * Parts>([&](int i) SEEDDELTA_INLINE_LAMBDA { f(i / Parts, i % Parts); });
        };
        for (int part = 0; part < Ops::kParts; part += Parts) {
            const uint8_t *values = panel.values + part * Tile::kBytes;
            const auto *q = reinterpret_cast<const int8_t *>(b.x) + group * TokenBatch::kGroupBytes + first * kDotGroup;
            const float *scale = b.scale + group * kBlock + first;
            const int32_t *bias = b.bias + group * kBlock + first;
            float *out = b.total + first * kTileRows + part * Tile::kRows;
            for (int64_t rest = dot_groups / 2; rest > 0;) {
                V sum[N][Parts];
                each([&](int n, int p) SEEDDELTA_INLINE_LAMBDA { sum[n][p] = Ops::start(bias[n]); });
                const auto pair = [&](int) SEEDDELTA_INLINE_LAMBDA {
                    V v[2][Parts];
                    unrolled<2 * Parts>([&](int of) SEEDDELTA_INLINE_LAMBDA {
                        const int p = of % Parts;
                        v[of / Parts][p] = Ops::load(values + of / Parts * kLaneBytes + p * Tile::kBytes);
                    });
                    if constexpr (N == 8 && Tile::kBlockDots) {
                        Tile::dots_of_block(sum, v[0][0], v[1][0], q);
                    } else {
                        each([&](int n, int p) SEEDDELTA_INLINE_LAMBDA {
                            const int8_t *x[2] = {q + n * kDotGroup, q + (kBlock + n) * kDotGroup};
                            if constexpr (Tile::kHalves) { // the compiler loads x once for all parts
                                sum[n][p] =
                                    Ops::dot_both(sum[n][p], v[0][p], v[1][p], Ops::four(x[0]), Ops::four(x[1]));
                                Ops::keep(sum[n][p]);
                            } else {
                                sum[n][p] = Tile::template dot<Parts>(sum[n][p], v[0][p], x[0]);
                                sum[n][p] = Tile::template dot<Parts>(sum[n][p], v[1][p], x[1]);
                            }
                        });
                    }
                    values += 2 * kLaneBytes;
                    q += 2 * kBlock * kDotGroup;
                };
                int64_t count = rest < kScaleGroups * pairs_a_group ? rest : kScaleGroups * pairs_a_group;
                rest -= count;
                for (; count >= pairs_a_group; count -= pairs_a_group) {
                    unrolled<pairs_a_group>(pair); // counting and jumps would take the place of products
                }
                for (; count > 0; --count) {
                    pair(0);
                }
                each([&](int n, int p) SEEDDELTA_INLINE_LAMBDA {
                    float *at = out + n * kTileRows + p * Tile::kRows;
                    Ops::store_rows(at, Ops::add_group(Ops::load_floats(at), sum[n][p], scale[n]));
                });
                scale += kScaleGroups * kBlock;
                bias += kScaleGroups * kBlock;
            }
        }
    }

    // The first N tokens of a block.
    template <int N>
    static void multiply(const Decoded &panel, int64_t dot_groups, int64_t group, const TokenBatch &b) {
        constexpr int tokens = std::min(N, kTokens);
        for (int64_t first = 0; first < N; first += tokens) {
            multiply<tokens, kParts>(panel, dot_groups, group, b, first);
        }
    }

    // A tile for all tokens: total of every block.
    template <class Pattern>
    static void tile(const seeddelta_ctx &ctx, const uint8_t *codes, int64_t n_tokens, int64_t groups,
                     uint8_t *scratch) {
        constexpr int64_t chunks_a_panel = kColumns / (kDotGroup * Pattern::kDotGroups);
        auto &panel = *reinterpret_cast<Decoded *>(scratch);
        Codes before(codes, Pattern::loop_line(ctx.lane_lines));
        int64_t chunks = ctx.lane_lines / Pattern::kLines;
        for (int64_t group = 0; chunks > 0; group += kColumns / kGroup) {
            const int64_t count = chunks < chunks_a_panel ? chunks : chunks_a_panel;
            codes = decode<Pattern>(codes, *ctx.lane_code, before, count, panel.values);
            for (int64_t token = 0; token < n_tokens; token += kBlock) {
                const TokenBatch b = TokenBatch::of(scratch, groups, token / kBlock);
                if (group == 0) {
                    __builtin_memset(b.total, 0, kBlock * kTileRows * sizeof(float));
                }
                if (n_tokens - token > kBlock / 2) {
                    multiply<kBlock>(panel, count * Pattern::kDotGroups, group, b);
                } else {
                    multiply<kBlock / 2>(panel, count * Pattern::kDotGroups, group, b);
                }
            }
            chunks -= count;
        }
    }
};

} // namespace
} // namespace seeddelta
