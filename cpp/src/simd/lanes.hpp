// Byte lanes: products of a tile of 16 rows with one to eight tokens, for any instruction set. Include inside an
// instruction-set unit only.
//
// A line of codes is 64 bytes, four streams of 16 rows. Decoded, byte 4 * r + i is the value of row r in one of four
// neighboring columns: what a product of bytes wants that adds four neighbors. The codes of the steps before are the
// registers of the steps before, so a value takes two look-ups and two additions and nothing else.
//
// `Ops` are LaneWords (lane_words.hpp); docs/internals/glossary.md has the other terms.
#pragma once
#include <algorithm>
#include <utility>

#include "format/lanes.hpp"
#include "simd/inline.hpp"
#include "simd/lane_patterns.hpp"
#include "simd/lane_words.hpp"
#include "simd/token_batch.hpp"

namespace seeddelta {
namespace {

template <LaneWords Ops>
struct LaneTile {
    using V = typename Ops::V;
    using F = typename Ops::F;
    static constexpr int kBytes = static_cast<int>(kLaneBytes) / Ops::kParts;
    static constexpr int kRows = static_cast<int>(kTileRows) / Ops::kParts;
    static constexpr int64_t kTokens = Ops::kDirect;        // of multiply, at most
    static constexpr int kLevel = Ops::kParts == 1 ? 2 : 3; // of the cache that codes are asked for: ask
    static constexpr bool kHalves = Ops::kHasDotBoth;
    static constexpr bool kPairDots = Ops::kHasPairDots;
    static constexpr bool kBlockDots = Ops::kHasBlockDots;

    // Where codes are six bits of an index and neighboring bits of planes are one shift away from the two above.
    static constexpr bool kWide = Ops::kHasWideTable;

    template <class Pattern>
    struct Tables {
        static_assert(Pattern::kPlanes <= 2, "a plane for the index of each table");
        // for bits of planes at even and at odd places of their byte
        static constexpr int kPlaces = kWide && Pattern::kPlanes > 0 ? 2 : 1;
        V a[Pattern::kTables][kPlaces];
        V b[Pattern::kTables][kPlaces];
        V added[Pattern::kPlanes + 1];
        SEEDDELTA_INLINE explicit Tables(const LaneCode &code) {
            [&]<int... Table>(std::integer_sequence<int, Table...>) {
                (load<Table, Pattern::value_with(Table)>(code), ...);
            }(std::make_integer_sequence<int, Pattern::kTables>{});
            for (int p = 0; p < Pattern::kPlanes; ++p) {
                int8_t amount[16];
                for (int8_t &byte : amount) {
                    byte = static_cast<int8_t>(Ops::kTakes ? -code.added[p] : code.added[p]);
                }
                added[p] = Ops::table(amount);
            }
        }
        template <int Table, int Value>
        SEEDDELTA_INLINE void load(const LaneCode &code) {
            int bias = Ops::kBias;
            for (int p = 0; Ops::kTakes && Pattern::has_bits(Value) && p < Pattern::kPlanes; ++p) {
                bias += code.added[p];
            }
            int8_t biased[16];
            for (int i = 0; i < 16; ++i) {
                biased[i] = static_cast<int8_t>(code.tables[Value].a[i] + bias); // may wrap: the whole sum fits
            }
            for (int place = 0; place < kPlaces; ++place) {
                a[Table][place] = Ops::table(biased);
                b[Table][place] = Ops::table(code.tables[Value].b);
                if constexpr (kPlaces > 1 && Pattern::has_bits(Value)) {
                    b[Table][place] = Ops::wide_table(b[Table][place], place, code.added[0]);
                }
                if constexpr (kPlaces > 1 && Pattern::kPlanes > 1 && Pattern::has_bits(Value)) {
                    a[Table][place] = Ops::wide_table(a[Table][place], place, code.added[1]);
                }
            }
        }
    };

    // The codes of the two steps before.
    struct Before {
        V c1, c2;
        Before() = default; // to be set
        SEEDDELTA_INLINE explicit Before(V both) : c1(Ops::high(both)), c2(Ops::low(both)) {}
    };

    // One step, number Step of the chunk; `c0` are its codes. Calls use(dot group of the chunk, values).
    template <class Pattern, int Step, class Use>
    static SEEDDELTA_INLINE void step(V c0, const uint8_t *planes, const Tables<Pattern> &t, Before &before,
                                      Use &&use) {
        constexpr int dot_group = Pattern::first_value(Step);
        constexpr int value = dot_group % Pattern::kValues;
        const auto emit = [&]<int I>(V at, V beside) SEEDDELTA_INLINE_LAMBDA {
            constexpr int of = Pattern::table_of(value + I);
            constexpr bool has_bits = Pattern::has_bits(dot_group + I);
            constexpr int bit = has_bits ? Pattern::plane_bit(dot_group + I) : 0;
            constexpr int place = bit % Tables<Pattern>::kPlaces;
            const auto plane = [&](int p) SEEDDELTA_INLINE_LAMBDA { return Ops::load(planes + p * kLaneBytes); };
            if constexpr (kWide && has_bits) {
                beside = Ops::template with_bit<bit>(beside, plane(0));
            }
            if constexpr (kWide && has_bits && Pattern::kPlanes > 1) {
                at = Ops::template with_bit<bit>(at, plane(1));
            }
            V out = Ops::add(Ops::look(t.a[of][place], at), Ops::look(t.b[of][place], beside));
            for (int p = 0; has_bits && !kWide && p < Pattern::kPlanes; ++p) {
                out = Ops::template add_bit<bit>(out, plane(p), t.added[p]);
            }
            use(dot_group + I, out);
        };
        const V sum = Ops::wrap(Ops::add(c0, before.c2));
        emit.template operator()<0>(sum, before.c1);
        if constexpr (Pattern::kEmits[Step % Pattern::kSteps] > 1) {
            const V both = Ops::wrap(Ops::add(sum, before.c1));
            emit.template operator()<1>(both, c0);
            if constexpr (Pattern::kEmits[Step % Pattern::kSteps] > 2) {
                emit.template operator()<2>(sum, before.c1);
            }
            if constexpr (Pattern::kEmits[Step % Pattern::kSteps] > 3) {
                emit.template operator()<3>(both, c0);
            }
        }
        before.c2 = before.c1;
        before.c1 = c0;
    }

    // The chunk at `codes` from its line `Line` of codes on. Each part of a line after the other; of tiles first the
    // low codes of all, then the high ones: so few registers are in use at a time, of codes or of activations.
    // `stride`: bytes between the parts. Calls use(dot group of the chunk, part, values).
    template <class Pattern, int Parts, int Line, class Use>
    static SEEDDELTA_INLINE void line(const uint8_t *codes, int64_t stride, const Tables<Pattern> &t, Before *before,
                                      Use &&use) {
        V both[Parts];
        const auto half = [&]<int Step>(int p) SEEDDELTA_INLINE_LAMBDA {
            const uint8_t *at = codes + p * stride;
            if constexpr (Step % 2 == 0) {
                both[p] = Ops::load(at + (Pattern::kPlanes + Line) * kLaneBytes);
            }
            const V code = Step % 2 == 0 ? Ops::low(both[p]) : Ops::high(both[p]);
            step<Pattern, Step>(code, at, t, before[p],
                                [&](int dot_group, V values) SEEDDELTA_INLINE_LAMBDA { use(dot_group, p, values); });
        };
        const auto low = [&](int p) SEEDDELTA_INLINE_LAMBDA { half.template operator()<2 * Line>(p); };
        const auto high = [&](int p) SEEDDELTA_INLINE_LAMBDA { half.template operator()<2 * Line + 1>(p); };
        if constexpr (Ops::kParts == 1) {
            unrolled<Parts>(low);
            unrolled<Parts>(high);
        } else {
            unrolled<Parts>([&](int p) SEEDDELTA_INLINE_LAMBDA {
                low(p);
                high(p);
            });
        }
        if constexpr (Pattern::kPlanes + Line + 1 < Pattern::kLines) {
            line<Pattern, Parts, Line + 1>(codes, stride, t, before, use);
        }
    }

    // Asks for `Lines` lines, for the second level of the cache or the first (3). Spelled out: the compiler would
    // gather what several chunks ask for, and a load from the third level is slower when many come at once.
    template <int Lines, int Level>
    static SEEDDELTA_INLINE void ask(const uint8_t *lines) {
        for (int l = 0; l < Lines; ++l) {
            const uint8_t *line = lines + l * kLaneBytes;
#if defined(__x86_64__)
            if constexpr (Level == 3) {
                asm volatile("prefetcht0 %0" : : "m"(*line));
            } else {
                asm volatile("prefetcht1 %0" : : "m"(*line));
            }
#else
            __builtin_prefetch(line, 0, Level);
#endif
        }
    }

    // The sum and the products of values with the four activations at x. With several parts the compiler loads x once.
    template <int Parts>
    static SEEDDELTA_INLINE V dot(V sum, V values, const int8_t *x) {
        if constexpr (Parts == 1 && Ops::kHasDotAt) {
            return Ops::dot_at(sum, values, x);
        } else {
            sum = Ops::dot(sum, values, Ops::four(x));
            Ops::keep(sum);
            return sum;
        }
    }

    // The same of two registers of values, for x0 and x1, where there is dot_both.
    static SEEDDELTA_INLINE V dot_both(V sum, V v0, V v1, const int8_t *x0, const int8_t *x1) {
        if constexpr (Ops::kHasDotBothAt) {
            return Ops::dot_both_at(sum, v0, v1, x0, x1);
        } else {
            sum = Ops::dot_both(sum, v0, v1, Ops::four(x0), Ops::four(x1));
            Ops::keep(sum);
            return sum;
        }
    }

    // The same for the eight tokens of a block, where there is dots_of_block.
    static SEEDDELTA_INLINE void dots_of_block(V (&sum)[8][1], V v0, V v1, const int8_t *x) {
        V all[8]; // in registers
        unrolled<8>([&](int n) SEEDDELTA_INLINE_LAMBDA { all[n] = sum[n][0]; });
        Ops::dots_of_block(all, v0, v1, x);
        unrolled<8>([&](int n) SEEDDELTA_INLINE_LAMBDA { sum[n][0] = all[n]; });
    }

    // Rows of `Parts` registers from part `part` on, for N tokens; `Tiles`: the parts are tiles.
    template <class Pattern, int Parts, int N, bool Tiles, class Inputs>
    [[gnu::noinline]] static void multiply_part(const seeddelta_ctx &ctx, const uint8_t *codes, int part, Inputs in,
                                                float (*acc)[kTileRows]) {
        constexpr int64_t chunks_a_group = kGroup / (4 * Pattern::kDotGroups);
        const int64_t stride = Tiles ? ctx.tile_bytes() : kBytes;
        const uint8_t *after = codes + Parts * stride;
        codes += part * kBytes;
        const Tables<Pattern> t(*ctx.lane_code);
        const auto each = [](auto &&f) SEEDDELTA_INLINE_LAMBDA {
            unrolled<N * Parts>([&](int i) SEEDDELTA_INLINE_LAMBDA { f(i / Parts, i % Parts); });
        };
        Before before[Parts];
        unrolled<Parts>([&](int p) SEEDDELTA_INLINE_LAMBDA {
            before[p] = Before(Ops::load(codes + Pattern::loop_line(ctx.lane_lines) * kLaneBytes + p * stride));
        });
        F total[N][Parts];
        each([&](int n, int p) SEEDDELTA_INLINE_LAMBDA { total[n][p] = Ops::no_floats(); });
        V sum[N][Parts];
        V even[Parts];
        // Number `c` of the chunks at `codes` and `in`.
        const auto chunk = [&](int c) SEEDDELTA_INLINE_LAMBDA {
            const auto multiply = [&](int dot_group, int p, V values) SEEDDELTA_INLINE_LAMBDA {
                const int at = 4 * (c * Pattern::kDotGroups + dot_group);
                if (dot_group == 0) {
                    if constexpr (Tiles) { // the next tiles, in the order of the memory
                        ask<Pattern::kLines, 2>(after + (c * Parts + p) * Pattern::kLines * kLaneBytes);
                    } else if (p == 0 && (Parts == Ops::kParts || part == 0)) { // not for a later part again
                        ask<Pattern::kLines, kLevel>(codes + kLanesAhead + c * Pattern::kLines * kLaneBytes);
                    }
                }
                if constexpr (!kHalves && !(N == 8 && kBlockDots)) {
                    unrolled<N>([&](int n) SEEDDELTA_INLINE_LAMBDA {
                        sum[n][p] = dot<Parts>(sum[n][p], values, in.at(n, at));
                    });
                } else if (dot_group % 2 == 0) {
                    even[p] = values;
                } else if constexpr (N == 4 && kPairDots) {
                    for (int n = 0; n < N; n += 2) {
                        V first = sum[n][p]; // in registers
                        V second = sum[n + 1][p];
                        Ops::dots_of_pair(first, second, even[p], values, in.at(n, at - 4));
                        sum[n][p] = first;
                        sum[n + 1][p] = second;
                    }
                } else if constexpr (!kHalves) {
                    dots_of_block(sum, even[p], values, in.at(0, at - 4));
                } else {
                    unrolled<N>([&](int n) SEEDDELTA_INLINE_LAMBDA {
                        sum[n][p] = dot_both(sum[n][p], even[p], values, in.at(n, at - 4), in.at(n, at));
                    });
                }
            };
            line<Pattern, Parts, 0>(codes + c * Pattern::kLines * kLaneBytes, stride, t, before, multiply);
        };
        const auto advance = [&](int64_t count) SEEDDELTA_INLINE_LAMBDA {
            codes += count * Pattern::kLines * kLaneBytes;
            after += count * Parts * Pattern::kLines * kLaneBytes;
            in.advance(count * 4 * Pattern::kDotGroups);
        };
        int64_t chunks = ctx.lane_lines / Pattern::kLines;
        int64_t group = 0;
        if constexpr (kBlockDots && N == 8) { // sums are scaled beside the products behind them: they need not wait
            constexpr int all = kScaleGroups * chunks_a_group;
            const float *scale = in.scales(0);
            each([&](int n, int p) SEEDDELTA_INLINE_LAMBDA { sum[n][p] = Ops::start(0); });
            for (; chunks >= all; chunks -= all, group += kScaleGroups) {
                V ended[N];
                unrolled<N>([&](int n) SEEDDELTA_INLINE_LAMBDA {
                    ended[n] = sum[n][0];
                    sum[n][0] = Ops::start(in.bias(n, group));
                });
                unrolled<all>([&](int c) SEEDDELTA_INLINE_LAMBDA {
                    chunk(c);
                    unrolled<N>([&](int n) SEEDDELTA_INLINE_LAMBDA {
                        if (n * all / N == c) {
                            total[n][0] = Ops::add_group(total[n][0], ended[n], scale[n]);
                        }
                    });
                });
                advance(all);
                scale = in.scales(group);
            }
            unrolled<N>(
                [&](int n) SEEDDELTA_INLINE_LAMBDA { total[n][0] = Ops::add_group(total[n][0], sum[n][0], scale[n]); });
        }
        for (; chunks > 0; group += kScaleGroups) {
            each([&](int n, int p) SEEDDELTA_INLINE_LAMBDA { sum[n][p] = Ops::start(in.bias(n, group)); });
            int64_t rest = chunks < kScaleGroups * chunks_a_group ? chunks : kScaleGroups * chunks_a_group;
            chunks -= rest;
            // With many sums the compiler would copy them for a loop, and counting takes the place of products.
            for (; N > 2 && Parts == 1 && rest >= chunks_a_group; rest -= chunks_a_group) {
                unrolled<chunks_a_group>(chunk);
                advance(chunks_a_group);
            }
            for (; rest > 0; --rest) {
                chunk(0);
                advance(1);
            }
            each([&](int n, int p) SEEDDELTA_INLINE_LAMBDA {
                total[n][p] = Ops::add_group(total[n][p], sum[n][p], in.scale(n, group));
            });
        }
        each([&](int n, int p) SEEDDELTA_INLINE_LAMBDA {
            Ops::store_rows(Tiles ? acc[p * kTokens + n] : acc[n] + (part + p) * kRows, total[n][p]);
        });
    }

    template <class Pattern, int N>
    static void multiply_n(const seeddelta_ctx &ctx, const uint8_t *codes, const Activations &a,
                           const TokenBatch &block, int64_t tiles, float (*acc)[kTileRows]) {
        const auto in = [&] {
            if constexpr (Ops::packed(N)) {
                return BlockInputs(block);
            } else {
                return RowInputs<N>(a);
            }
        }();
        if constexpr (Ops::tiles(N) > 1) {
            if (tiles > 1) {
                return multiply_part<Pattern, Ops::tiles(N), N, true>(ctx, codes, 0, in, acc);
            }
        }
        constexpr int parts = Ops::direct_parts(N);
        for (int part = 0; part < Ops::kParts; part += parts) {
            multiply_part<Pattern, parts, N, false>(ctx, codes, part, in, acc);
        }
    }

    // How many tiles multiply takes at a time, and at most.
    static constexpr int64_t tiles_for(int64_t n_tokens) { return Ops::tiles(together(n_tokens)); }
    // How many tokens a kernel has for so many.
    static constexpr int together(int64_t n_tokens) {
        return n_tokens <= 2 ? static_cast<int>(n_tokens) : n_tokens <= 4 ? 4 : 8;
    }
    static constexpr bool packs(int64_t n_tokens) { return Ops::packed(together(n_tokens)); }
    static constexpr int64_t kTiles = std::max({tiles_for(1), tiles_for(2), tiles_for(4), tiles_for(8)});

    // One tile, or as many as tiles_for says, for 1 .. kTokens tokens: every register of codes is decoded once.
    // The sums of a tile are kTokens rows of `acc`. `block` has the tokens where packs() says so.
    static void multiply(const seeddelta_ctx &ctx, const uint8_t *codes, const Activations &a, const TokenBatch &block,
                         int64_t tiles, float (*acc)[kTileRows]) {
        const int64_t count = a.n_tokens;
        with_pattern(*ctx.lane_code, [&]<class Pattern>() {
            if (count == 1) {
                multiply_n<Pattern, 1>(ctx, codes, a, block, tiles, acc);
            } else if (count == 2) {
                multiply_n<Pattern, 2>(ctx, codes, a, block, tiles, acc);
            } else if (count <= 4) {
                if constexpr (kTokens > 2) {
                    multiply_n<Pattern, 4>(ctx, codes, a, block, tiles, acc);
                }
            } else if constexpr (kTokens > 4) {
                multiply_n<Pattern, 8>(ctx, codes, a, block, tiles, acc);
            }
        });
    }
};

} // namespace
} // namespace seeddelta
