// Strips of byte lanes in column layout (format/column_lanes.hpp), decoded and multiplied, for any instruction set.
// Include inside an instruction-set unit only.
//
// Four units at a time: a line of each, unpacked twice, is a register whose 32-bit lanes hold the four codes of a
// stream. From there on it is lanes.hpp: decoded, the lane of an output has what the four units give it. The sums of a
// strip stay in registers over all units of a group. A wide strip fills the register with its streams; of a narrow one,
// with four streams, each 128-bit lane has four units of its own, and the lanes are added at the end of a group.
//
// `Ops` are the words of lanes.hpp and besides: zip8, zip16 (interleave two registers, low and high half of each
// 128-bit lane), gather (so many bytes of an address a 128-bit lane), lanes_of (the 32 bits of each 128-bit lane from
// neighboring ones), fold (adds the 128-bit lanes of as many registers, one after the other); kLanes: 128-bit lanes;
// hold (keep a sum in a register where there are enough, else in memory).
#pragma once
#include "format/column_lanes.hpp"
#include "simd/lanes.hpp"

namespace seeddelta {
namespace {

// Neighbors are asked for this long before they are read.
inline constexpr int64_t kStripUnitsAhead = 64;

template <class Ops, class Pattern, bool Wide>
struct LaneColumns {
    using V = typename Ops::V;
    using Tile = LaneTile<Ops>;
    using Tables = typename Tile::template Tables<Pattern>;
    static constexpr int kLanes = Ops::kLanes;
    static constexpr int kParts =
        Wide ? static_cast<int>(kWideStreams / kNarrowStreams) / kLanes : 1; // registers per code line
    // Parts that are multiplied in turns: of a line from memory both halves are used at once.
    static constexpr int kTogether = kParts == 2 ? 2 : 1;
    static constexpr int kDotGroups = Wide ? 1 : kLanes; // times four units together
    static constexpr int kUnits = 4 * kDotGroups;
    static constexpr int kStreams = static_cast<int>(Wide ? kWideStreams : kNarrowStreams);
    static constexpr int kValues = static_cast<int>(kColumnValues);
    static constexpr int kChunks = kValues / Pattern::kDotGroups;
    static constexpr int kLines = kChunks * Pattern::kLines;
    static constexpr int kBytes = kLines * kStreams; // of a unit
    static constexpr int kBlock = static_cast<int>(kBlockLines);
    static constexpr int kBlocks = (kLines + kBlock - 1) / kBlock;
    static constexpr int kFetches = (kBytes + 63) / 64; // of a unit
    static constexpr int kFold = Wide ? 1 : kLanes;     // values that one register of sums ends as
    static constexpr int kFloats = static_cast<int>(sizeof(V) / sizeof(float)); // of that register

    using Units = const uint8_t *[kDotGroups][4];

    // The lines of block `Block` of unit i of each dot_group.
    template <int Block>
    static SEEDDELTA_INLINE V piece(const Units &at, int i, int part) {
        constexpr int lines = std::min(kBlock, kLines - kBlock * Block);
        if constexpr (Wide && lines == kBlock) {
            return Ops::load(at[0][i] + kBlock * kStreams * Block + part * static_cast<int>(sizeof(V)));
        } else {
            const uint8_t *from[kLanes];
            for (int l = 0; l < kLanes; ++l) {
                from[l] =
                    at[Wide ? 0 : l][i] + kBlock * kStreams * Block + (Wide ? (part * kLanes + l) * 4 * lines : 0);
            }
            return Ops::template gather<4 * lines>(from);
        }
    }

    // All lines of the four units of each dot group, interleaved.
    struct Lines {
        V line[kBlocks * kBlock];
        SEEDDELTA_INLINE Lines(const Units &at, int part) {
            [&]<int... Block>(std::integer_sequence<int, Block...>) SEEDDELTA_INLINE_LAMBDA {
                (interleave<Block>(at, part), ...);
            }(std::make_integer_sequence<int, kBlocks>{});
        }
        template <int Block>
        SEEDDELTA_INLINE void interleave(const Units &at, int part) {
            V low[2];
            V high[2];
            for (int i = 0; i < 2; ++i) {
                Ops::zip8(piece<Block>(at, 2 * i, part), piece<Block>(at, 2 * i + 1, part), low[i], high[i]);
            }
            V *four = line + kBlock * Block;
            Ops::zip16(low[0], low[1], four[0], four[1]);
            Ops::zip16(high[0], high[1], four[2], four[3]);
        }
    };

    // Calls use(value, register) for all values.
    template <class Use>
    static SEEDDELTA_INLINE void decode(const Units &at, int part, const Tables &t, Use &&use) {
        Lines lines(at, part); // not const: GCC 12 keeps what is initialized as const in memory
        typename Tile::Before before(lines.line[kLines - 1]);
        [&]<int... Chunk>(std::integer_sequence<int, Chunk...>) SEEDDELTA_INLINE_LAMBDA {
            (chunk<Chunk>(lines.line, t, before, use), ...);
        }(std::make_integer_sequence<int, kChunks>{});
    }

    template <int Chunk, class Use>
    static SEEDDELTA_INLINE void chunk(const V *line, const Tables &t, typename Tile::Before &before, Use &&use) {
        constexpr int first = Chunk * Pattern::kLines;
        alignas(64) uint8_t planes[(Pattern::kPlanes + 1) * kLaneBytes];
        for (int p = 0; p < Pattern::kPlanes; ++p) {
            Ops::store(planes + p * kLaneBytes, line[first + p]);
        }
        const auto one = [&](int dot_group, V values)
                             SEEDDELTA_INLINE_LAMBDA { use(Chunk * Pattern::kDotGroups + dot_group, values); };
        [&]<int... Line>(std::integer_sequence<int, Line...>) SEEDDELTA_INLINE_LAMBDA {
            (steps<Line>(line[first + Pattern::kPlanes + Line], planes, t, before, one), ...);
        }(std::make_integer_sequence<int, Pattern::kChunk / 2>{});
    }

    template <int Line, class Use>
    static SEEDDELTA_INLINE void steps(V both, const uint8_t *planes, const Tables &t, typename Tile::Before &before,
                                       Use &&use) {
        Tile::template step<Pattern, 2 * Line>(Ops::low(both), planes, t, before, use);
        Tile::template step<Pattern, 2 * Line + 1>(Ops::high(both), planes, t, before, use);
    }

    // The inputs of kUnits units.
    static SEEDDELTA_INLINE V inputs(const int8_t *q) {
        if constexpr (Wide) {
            return Ops::four(q);
        } else {
            return Ops::lanes_of(q);
        }
    }

    // y += float(sums) * scale of kFold values from `value` on
    static SEEDDELTA_INLINE void add(const V *sums, int value, int part, float scale, float *y) {
        V sum = sums[0];
        if constexpr (!Wide) {
            sum = Ops::fold(sums);
        }
        float *out = y + value * kStreams + part * kFloats;
        Ops::store_rows(out, Ops::add_group(Ops::load_floats(out), sum, scale));
    }

    // Listed units.
    static SEEDDELTA_INLINE void find(const uint8_t *codes, const int32_t *index, Units &at) {
        for (int u = 0; u < kUnits; ++u) {
            at[u / 4][u % 4] = codes + static_cast<int64_t>(index[u]) * kBytes;
        }
    }

    // Units i to i + kUnits of the list. A group ends at a multiple of kListStep: where more are multiplied at a time
    // the last ones are filled up by its last unit times 0.
    struct Few {
        const int32_t *index;
        const int8_t *q;
        int32_t filled_index[kUnits];
        int8_t filled_q[kUnits];
        SEEDDELTA_INLINE Few(const ColumnInput &in, int64_t i, int64_t end) : index(in.index + i), q(in.q + i) {
            if constexpr (kUnits > kListStep) {
                if (end - i < kUnits) {
                    for (int64_t u = 0; u < kUnits; ++u) {
                        filled_index[u] = in.index[std::min(i + u, end - 1)];
                        filled_q[u] = i + u < end ? in.q[i + u] : int8_t{0};
                    }
                    index = filled_index;
                    q = filled_q;
                }
            }
        }
    };

    // Values [First, Last) of one strip.
    template <int First, int Last, bool All>
    static void multiply_values(const LaneCode &code, const uint8_t *codes, const ColumnInput &in, float *y) {
        const Tables t(code);
        for (int64_t g = 0; g < in.n_groups; ++g) {
            for (int part = 0; part < kParts && in.begin[g] < in.begin[g + 1]; part += kTogether) {
                multiply_group<First, Last, All>(t, codes, in, g, part, y);
            }
        }
    }

    template <bool All>
    static void multiply_strip(const LaneCode &code, const uint8_t *codes, const ColumnInput &in, int first, int last,
                               float *y) {
        if constexpr (!Wide) {
            if (last - first == kValues / 2) {
                return first == 0 ? multiply_values<0, kValues / 2, All>(code, codes, in, y)
                                  : multiply_values<kValues / 2, kValues, All>(code, codes, in, y);
            }
        }
        multiply_values<0, kValues, All>(code, codes, in, y);
    }

    static void multiply(const LaneCode &code, const uint8_t *codes, const ColumnInput &in, int first, int last,
                         float *y) {
        if (in.index == nullptr) {
            multiply_strip<true>(code, codes, in, first, last, y);
        } else {
            multiply_strip<false>(code, codes, in, first, last, y);
        }
    }

    // The last units of all, when they are fewer than kUnits: their bytes, filled up. Their inputs are.
    struct Rest {
        alignas(64) uint8_t bytes[kUnits * kBytes];
        [[gnu::noinline]] void fill(const uint8_t *units, int64_t n) {
            __builtin_memset(bytes, 0, sizeof bytes);
            __builtin_memcpy(bytes, units, static_cast<size_t>(n * kBytes));
        }
    };

    // Values [First, Last) of the parts of a strip from `part` on, kTogether of them, for one group. All: the units are
    // neighbors.
    template <int First, int Last, bool All>
    [[gnu::noinline]] static void multiply_group(const Tables &tables, const uint8_t *codes, const ColumnInput &in,
                                                 int64_t g, int part, float *y) {
        const Tables t = tables;
        const int64_t begin = in.begin[g];
        const int64_t end = in.begin[g + 1];
        Rest rest;
        if (All && (end - begin) % kUnits != 0) {
            const int64_t whole = begin + (end - begin) / kUnits * kUnits;
            rest.fill(codes + whole * kBytes, end - whole);
        }
        constexpr int values = Last - First;
        V sum[kTogether * values];
        const V start = Ops::start(in.bias[g] / kDotGroups);
        unrolled<kTogether * values>([&](int i) SEEDDELTA_INLINE_LAMBDA { sum[i] = start; });
        for (int64_t i = begin; i < end; i += kUnits) {
            Units at;
            if constexpr (All) {
                const V x = inputs(in.q + i);
                const uint8_t *units = codes + i * kBytes;
                const Neighbors<First, Last> later(units, part);
                units = end - i >= kUnits ? units : rest.bytes;
                for (int u = 0; u < kUnits; ++u) {
                    at[u / 4][u % 4] = units + u * kBytes;
                }
                multiply_units<First, Last>(at, part, t, x, later, sum);
                if constexpr (kTogether == 2) {
                    multiply_units<First, Last>(at, part + 1, t, x, Nothing(), sum + values);
                }
            } else {
                const Few few(in, i, end);
                find(codes, few.index, at);
                const V x = inputs(few.q);
                unrolled<kTogether>([&](int p) SEEDDELTA_INLINE_LAMBDA {
                    const Listed later(codes, in.index + i, part + p);
                    multiply_units<First, Last>(at, part + p, t, x, later, sum + p * values);
                });
            }
        }
        const float scale = in.scale[g];
        unrolled<kTogether * values / kFold>([&](int i) SEEDDELTA_INLINE_LAMBDA {
            const int at = i * kFold;
            add(sum + at, First + at % values, part + at / values, scale, y);
        });
    }

    template <int First, int Last, class Later>
    static SEEDDELTA_INLINE void multiply_units(const Units &at, int part, const Tables &t, V x, const Later &later,
                                                V *sum) {
        decode(at, part, t, [&](int value, V v) SEEDDELTA_INLINE_LAMBDA {
            later.ask(value);                     // a few lines at a time: there are few places for what is under way
            if (value >= First && value < Last) { // what is not used costs nothing
                sum[value - First] = Ops::dot(sum[value - First], v, x);
                Ops::hold(sum[value - First]);
            }
        });
    }

    struct Nothing {
        SEEDDELTA_INLINE void ask(int) const {}
    };

    // The lines of the units after these, when all are read: what follows the strip is the next one. Each part asks for
    // some of them, or the first of those together for all.
    template <int First, int Last>
    struct Neighbors {
        static constexpr int kSize = Last - First;
        static constexpr int kAskers = kParts / kTogether;
        static constexpr int kLinesEach = (kUnits * kBytes / 64 + kAskers - 1) / kAskers;
        const uint8_t *from;
        SEEDDELTA_INLINE Neighbors(const uint8_t *units, int part)
            : from(units + kStripUnitsAhead * kBytes + part / kTogether * kLinesEach * 64) {}
        SEEDDELTA_INLINE void ask(int value) const {
            const int v = value - First;
            if (v >= 0 && v < kSize) {
                for (int n = v * kLinesEach / kSize; n < (v + 1) * kLinesEach / kSize; ++n) {
                    __builtin_prefetch(from + n * 64);
                    asm volatile(""); // where it stands, not beside the others
                }
            }
        }
    };

    // The lines of the units that are listed kListAhead places after these, or of the next strip. Each part asks for
    // some of them.
    struct Listed {
        static constexpr int kLinesEach = (kUnits * kFetches + kParts - 1) / kParts;
        static_assert(kListAhead + kUnits <= kListMore);
        const uint8_t *codes;
        const int32_t *index;
        int first;
        SEEDDELTA_INLINE Listed(const uint8_t *strip, const int32_t *list, int part)
            : codes(strip), index(list + kListAhead), first(part * kLinesEach) {}
        SEEDDELTA_INLINE void ask(int value) const {
            for (int n = value * kLinesEach / kValues; n < (value + 1) * kLinesEach / kValues; ++n) {
                const auto unit = static_cast<int64_t>(index[(first + n) / kFetches]);
                const uint8_t *from = codes + unit * kBytes + (first + n) % kFetches * 64;
                __builtin_prefetch(from, 0, 2); // the first level has too few places
                asm volatile("");               // where it stands, not beside the others
            }
        }
    };

    // Units [0, n) of a group: panel [kValues][kGroup / kUnits][kParts] registers.
    static constexpr int64_t kRow = kGroup / kUnits * kParts * static_cast<int64_t>(sizeof(V));
    [[gnu::noinline]] static void decode_group(const LaneCode &code, const uint8_t *codes, int64_t n, uint8_t *panel) {
        const Tables t(code);
        for (int64_t i = 0; i < n; i += kUnits) {
            Units at;
            for (int u = 0; u < kUnits; ++u) {
                at[u / 4][u % 4] = codes + (i + u < n ? i + u : n - 1) * kBytes;
            }
            for (int part = 0; part < kParts; ++part, panel += sizeof(V)) {
                decode(at, part, t,
                       [&](int value, V v) SEEDDELTA_INLINE_LAMBDA { Ops::store(panel + value * kRow, v); });
            }
        }
    }

    // Values [first, last) of the tokens [token, token + N); y is that of the first.
    template <int N>
    static void multiply_panel(const Activations &a, int64_t group, const uint8_t *panel, int64_t n, int first,
                               int last, int64_t token, float *y, int64_t y_stride) {
        const int64_t groups = a.stride / kGroup;
        const int8_t *q = a.q + token * a.stride + group * kGroup;
        for (int v = first; v < last; v += kFold) {
            for (int part = 0; part < kParts; ++part) {
                V sum[N][kFold];
                for (int t = 0; t < N; ++t) {
                    for (V &s : sum[t]) {
                        s = Ops::start(a.bias[(token + t) * groups + group] / kDotGroups);
                    }
                }
                const uint8_t *from = panel + v * kRow + part * static_cast<int64_t>(sizeof(V));
                for (int64_t i = 0; i < n; i += kUnits, from += kParts * sizeof(V)) {
                    for (int t = 0; t < N; ++t) {
                        const V x = inputs(q + t * a.stride + i);
                        for (int f = 0; f < kFold; ++f) {
                            sum[t][f] = Ops::dot(sum[t][f], Ops::load(from + f * kRow), x);
                        }
                    }
                }
                for (int t = 0; t < N; ++t) {
                    add(sum[t], v, part, a.scale[(token + t) * groups + group], y + t * y_stride);
                }
            }
        }
    }

    // The same of all of `count` tokens from `token` on.
    static void multiply_panel(const Activations &a, int64_t group, const uint8_t *panel, int64_t n, int first,
                               int last, int64_t token, int64_t count, float *y, int64_t y_stride) {
        int64_t i = 0;
        for (; i + 4 <= count; i += 4) {
            multiply_panel<4>(a, group, panel, n, first, last, token + i, y + i * y_stride, y_stride);
        }
        for (; i < count; ++i) {
            multiply_panel<1>(a, group, panel, n, first, last, token + i, y + i * y_stride, y_stride);
        }
    }
};

} // namespace
} // namespace seeddelta
