// Trellis tiles, one 16-bit lane a row. Include inside an instruction-set unit only. `Words` are those of words_*.hpp.
//
// Four columns become one step of byte products: the values (plus Words::kBias) of columns t..t+3 of a row fill one
// 32-bit lane. Interleaving may leave the rows in another order; sums are put in order when a tile is done.
#pragma once
#include "format/trellis.hpp"
#include "simd/inline.hpp"
#include "simd/kernel_table.hpp"
#include "simd/rates.hpp"

namespace seeddelta {
namespace {

// Values of Words::kTiles tiles.
template <class Words>
struct TrellisValues {
    using V = typename Words::V;
    using F = typename Words::F;
    static constexpr int kParts = Words::kParts;
    static constexpr int kRegisters = 2 * kParts; // of four columns
    static constexpr int kFloats = sizeof(F) / 4;
    static_assert(kRegisters * kFloats == Words::kTiles * kTileRows);

    struct Tables {
        typename Words::Multiplier multiplier[2];
        V table1, table2;
        SEEDDELTA_INLINE explicit Tables(const uint16_t *m)
            : multiplier{Words::multiplier(m[0]), Words::multiplier(m[1])},
              table1(Words::add_bytes(Words::table(kTrellisTable1), Words::repeat(0x01010101 * Words::kBias))),
              table2(Words::table(kTrellisTable2)) {}
    };

    // The states of a chunk's step T; word(i) are its words number i.
    template <int K, int T, bool Narrow, class Word>
    static SEEDDELTA_INLINE V state(Word &&word) {
        constexpr int at = K * T / 16;
        constexpr int shift = K * T % 16;
        if constexpr (shift == 0) {
            return word(at);
        } else if constexpr (Narrow && shift >= 12) {
            return Words::template shift_right<16 - shift>(word(at + 1));
        } else {
            return Words::template concat<shift>(word(at), word(at + 1));
        }
    }

    // Values of two columns: bytes (first, second) of every 16-bit lane.
    static SEEDDELTA_INLINE V values(V first, V second, const Tables &c) {
        return Words::look_up(Words::high_bytes(first, second), c.table1, c.table2);
    }
};

// A walk through the codes of Words::kTiles neighbouring tiles.
template <class Words>
struct TileWalk : TrellisValues<Words> {
    using Base = TrellisValues<Words>;
    using Base::kFloats;
    using Base::kParts;
    using Base::kRegisters;
    using typename Base::F;
    using typename Base::Tables;
    using typename Base::V;
    static constexpr int kTiles = Words::kTiles;
    static_assert(kTiles == 1 || kParts == 1);

    // The words of a chunk of 16 steps, and the one after them, in which its last state ends. Those of two tiles, which
    // take an instruction to put together, stay in registers; others are read where they are used.
    template <int K>
    struct Chunk {
        static constexpr int kHeld = kTiles > 1 ? K + 1 : 0;
        const uint16_t *from[kTiles];
        V held[K + 1];

        SEEDDELTA_INLINE Chunk(const seeddelta_ctx &ctx, int64_t tile) {
            for (int i = 0; i < kTiles; ++i) {
                from[i] = ctx.codes + (tile + i) * ctx.words() * kTileRows;
            }
            if constexpr (kHeld > 0) {
                held[K] = Words::load_states(from, 0);
            }
        }

        SEEDDELTA_INLINE void begin() {
            if constexpr (kHeld > 0) {
                held[0] = held[K];
                for (int i = 1; i <= K; ++i) {
                    held[i] = Words::load_states(from, i * kTileRows);
                }
            }
        }

        SEEDDELTA_INLINE void end() {
            for (const uint16_t *&p : from) {
                p += K * kTileRows;
            }
        }

        SEEDDELTA_INLINE V word(int part, int i) const {
            if constexpr (kHeld > 0) {
                return held[i];
            } else {
                return Words::load_states(from, i * kTileRows + part * kTileRows / kParts);
            }
        }

        // Values of the neighbouring columns T and T + 1
        template <int ValuesPerStep, bool Narrow, int T>
        SEEDDELTA_INLINE V two_columns(int part, const Tables &c) const {
            const auto at = [&](int i) SEEDDELTA_INLINE_LAMBDA { return word(part, i); };
            if constexpr (ValuesPerStep == 1) {
                return Base::values(Words::multiply(Base::template state<K, T, Narrow>(at), c.multiplier[0]),
                                    Words::multiply(Base::template state<K, T + 1, Narrow>(at), c.multiplier[0]), c);
            } else {
                const V s = Base::template state<K, T / 2, Narrow>(at);
                return Base::values(Words::multiply(s, c.multiplier[0]), Words::multiply(s, c.multiplier[1]), c);
            }
        }

        // Calls use(quad, values) for the columns [4 * quad, 4 * quad + 4).
        template <int ValuesPerStep, bool Narrow, int Quad = 0, class Use>
        SEEDDELTA_INLINE void quads(const Tables &c, Use &&use) const {
            V values[kRegisters];
            for (int part = 0; part < kParts; ++part) {
                Words::interleave(two_columns<ValuesPerStep, Narrow, 4 * Quad>(part, c),
                                  two_columns<ValuesPerStep, Narrow, 4 * Quad + 2>(part, c), values + 2 * part);
            }
            use(Quad, values);
            if constexpr (Quad + 1 < 4 * ValuesPerStep) {
                quads<ValuesPerStep, Narrow, Quad + 1>(c, use);
            }
        }
    };

    static SEEDDELTA_INLINE void store_rows(F *total, float (*acc)[kTileRows]) {
        Words::order(total);
        for (int r = 0; r < kRegisters; ++r) {
            Words::store_floats(acc[0] + r * kFloats, total[r]);
        }
    }

    template <int K, int ValuesPerStep, bool Narrow>
    [[gnu::noinline]] static void multiply(const seeddelta_ctx &ctx, int64_t tile, const Activations &a,
                                           float (*acc)[kTileRows]) {
        constexpr int64_t chunks_a_group = kGroup / (16 * ValuesPerStep);
        const Tables c(ctx.multiplier);
        Chunk<K> chunk(ctx, tile);
        CodesAhead<K> ahead(ctx, chunk.from);
        const int8_t *q = a.q;
        F total[kRegisters];
        for (F &t : total) {
            t = Words::no_floats();
        }
        int64_t chunks = ctx.steps() / 16;
        for (int64_t group = 0; chunks > 0; ++group) {
            V sum[kRegisters];
            for (V &s : sum) {
                s = Words::start(a.bias[group]);
            }
            const int64_t count = chunks < chunks_a_group ? chunks : chunks_a_group;
            for (int64_t i = 0; i < count; ++i) {
                ahead.fetch();
                chunk.begin();
                chunk.template quads<ValuesPerStep, Narrow>(c, [&](int quad, const V *values) SEEDDELTA_INLINE_LAMBDA {
                    const V x = Words::four(q + 4 * quad);
                    for (int r = 0; r < kRegisters; ++r) {
                        sum[r] = Words::dot(sum[r], values[r], x);
                    }
                });
                chunk.end();
                q += 16 * ValuesPerStep;
            }
            chunks -= count;
            for (int r = 0; r < kRegisters; ++r) {
                total[r] = Words::add_group(total[r], sum[r], a.scale[group]);
            }
        }
        store_rows(total, acc);
    }

    // panel: [columns / 4][kRegisters] registers
    template <int K, int ValuesPerStep, bool Narrow>
    static void decode(const seeddelta_ctx &ctx, int64_t tile, uint8_t *panel) {
        const Tables c(ctx.multiplier);
        Chunk<K> chunk(ctx, tile);
        for (int64_t i = 0; i < ctx.steps() / 16; ++i) {
            chunk.begin();
            chunk.template quads<ValuesPerStep, Narrow>(c, [&](int quad, const V *values) SEEDDELTA_INLINE_LAMBDA {
                for (int r = 0; r < kRegisters; ++r) {
                    Words::store(panel + (quad * kRegisters + r) * sizeof(V), values[r]);
                }
            });
            chunk.end();
            panel += 4 * ValuesPerStep * kRegisters * sizeof(V);
        }
    }

private:
    // Two streams are more than the hardware's prefetcher follows. The tiles of the next pair lie behind those of this
    // one: in the order of the memory they are one.
    template <int K>
    struct CodesAhead {
        const char *from;
        bool near;

        SEEDDELTA_INLINE CodesAhead(const seeddelta_ctx &ctx, const uint16_t *const *words)
            : from(reinterpret_cast<const char *>(words[kTiles - 1]) + seeddelta::kCodesAhead),
              near(codes_lead(ctx.tile_bytes()) <= kNearBytes) {}

        // Into the second cache when the first is too small for what comes before them.
        SEEDDELTA_INLINE void fetch() {
            if constexpr (kTiles > 1) {
                if (near) {
                    for (int line = 0; line < K; ++line) {
                        __builtin_prefetch(from + kLineBytes * line);
                    }
                } else {
                    for (int line = 0; line < K; ++line) {
                        __builtin_prefetch(from + kLineBytes * line, 0, 2);
                    }
                }
                from += kLineBytes * K;
            }
        }
    };
};

// The operations of compute.hpp. `Wide` are the words for one token and Wide::kTiles tiles; prompts, and a last tile
// without a neighbour, go through `Words`.
template <class Words, class Wide = Words>
struct Tile {
    using Walk = TileWalk<Words>;
    using V = typename Words::V;
    using F = typename Words::F;
    static constexpr int64_t kTokens = Words::kTokens;
    static constexpr int64_t kTiles = Wide::kTiles;
    static constexpr int kRegisters = Walk::kRegisters;
    static_assert(Words::kTiles == 1);

    static void multiply_codes(const seeddelta_ctx &ctx, int64_t tile, int64_t count, const Activations &a, uint8_t *,
                               float (*acc)[kTileRows]) {
        with_rate(ctx, [&]<int K, int ValuesPerStep, bool Narrow>() {
            if (kTiles == 1 || count < kTiles) {
                Walk::template multiply<K, ValuesPerStep, Narrow>(ctx, tile, a, acc);
            } else {
                TileWalk<Wide>::template multiply<K, ValuesPerStep, Narrow>(ctx, tile, a, acc);
            }
        });
    }

    static void decode(const seeddelta_ctx &ctx, int64_t tile, uint8_t *panel) {
        with_rate(ctx, [&]<int K, int ValuesPerStep, bool Narrow>() {
            Walk::template decode<K, ValuesPerStep, Narrow>(ctx, tile, panel);
        });
    }

    // N tokens at a time against a decoded tile.
    template <int N>
    static void multiply_panel_n(const seeddelta_ctx &ctx, const Activations &a, const uint8_t *panel, int64_t token,
                                 float (*acc)[kTileRows]) {
        const int64_t groups = a.stride / kGroup;
        int64_t quads = ctx.steps() * ctx.values_per_step / 4;
        F total[N][kRegisters];
        for (auto &of_token : total) {
            for (F &t : of_token) {
                t = Words::no_floats();
            }
        }
        for (int64_t group = 0; quads > 0; ++group) {
            V sum[N][kRegisters];
            const int8_t *q = a.q + token * a.stride + group * kGroup;
            for (int n = 0; n < N; ++n) {
                for (V &s : sum[n]) {
                    s = Words::start(a.bias[(token + n) * groups + group]);
                }
            }
            const int64_t count = quads < kGroup / 4 ? quads : kGroup / 4;
            for (int64_t i = 0; i < count; ++i, panel += kRegisters * sizeof(V)) {
                V values[kRegisters];
                for (int r = 0; r < kRegisters; ++r) {
                    values[r] = Words::load(panel + r * sizeof(V));
                }
                for (int n = 0; n < N; ++n) {
                    const V x = Words::four(q + n * a.stride + 4 * i);
                    for (int r = 0; r < kRegisters; ++r) {
                        sum[n][r] = Words::dot(sum[n][r], values[r], x);
                    }
                }
            }
            quads -= count;
            for (int n = 0; n < N; ++n) {
                for (int r = 0; r < kRegisters; ++r) {
                    total[n][r] = Words::add_group(total[n][r], sum[n][r], a.scale[(token + n) * groups + group]);
                }
            }
        }
        for (int n = 0; n < N; ++n) {
            Walk::store_rows(total[n], acc + n);
        }
    }

    static void multiply_panel(const seeddelta_ctx &ctx, const Activations &a, const uint8_t *panel, int64_t token,
                               int64_t count, float (*acc)[kTileRows]) {
        int64_t done = 0;
        for (; done + kTokens <= count; done += kTokens) {
            multiply_panel_n<static_cast<int>(kTokens)>(ctx, a, panel, token + done, acc + done);
        }
        for (; done < count; ++done) {
            multiply_panel_n<1>(ctx, a, panel, token + done, acc + done);
        }
    }

    // 64 products of values plus kValueBias, at most 127
    static SEEDDELTA_INLINE int32_t dot64(const uint8_t *values, const int8_t *q) {
        V sum = Words::start(0);
        for (int64_t i = 0; i < 64; i += static_cast<int64_t>(sizeof(V))) {
            sum = Words::dot(sum, Words::load(values + i), Words::load(q + i));
        }
        return Words::sum(sum);
    }
};

} // namespace
} // namespace seeddelta
