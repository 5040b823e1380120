// Products with the trellis in column layout, for any instruction set. Include inside an instruction-set unit only.
//
// Some units at a time: the same step of each gives the values of 16 outputs, and those of four units fill the 32-bit
// lane of an output, which is multiplied with the units' four inputs. The sums of a slice of 64 outputs stay in
// registers over all units of a group. `Columns` has the words: kUnits, kPairs, kBytes, Tables, slice, decode and
// multiply_panel.
#pragma once
#include "format/column_trellis.hpp"
#include "simd/activations.hpp"
#include "simd/kernel_table.hpp"
#include "simd/rates.hpp"

namespace seeddelta {
namespace {

// Active units of one group, filled up to a multiple of Columns::kUnits with units whose input is 0.
struct UnitGroup {
    static constexpr int kMost = kGroup + 8;
    alignas(64) uint16_t end[kMost][7][kTileRows]; // the words from the last chunk on, and the one after them
    const uint16_t *unit[kMost];
    const uint16_t *last[kMost]; // into end
    const uint16_t *next[kMost]; // units of the group after it, to be prefetched
    alignas(8) int8_t q[kMost];
    int64_t count;
    int32_t bias; // -kValueBias times the sum of q

    void gather(const ColumnWeight &w, const int32_t *index, int64_t first, const int8_t *inputs, int64_t n,
                int64_t multiple) {
        int32_t sum = 0;
        count = (n + multiple - 1) / multiple * multiple;
        for (int64_t i = 0; i < count; ++i) {
            const int64_t number = i < n ? i : n - 1;
            unit[i] = w.codes + (index != nullptr ? index[number] : first + number) * w.words * kTileRows;
            last[i] = end[number][0];
            q[i] = i < n ? inputs[i] : int8_t{0};
            sum += q[i];
        }
        bias = -kValueBias * sum;
    }

    void prefetch(const ColumnWeight &w, const int32_t *index, int64_t n) {
        for (int64_t i = 0; i < count; ++i) {
            next[i] = i < n ? w.codes + index[i] * w.words * kTileRows : unit[i];
        }
    }

    // Copies the words from `first` on and appends the stream's next 16 bits: no kernel has to go round. For every unit
    // of every group: 16 lanes at a time, or it takes as long as half of the products.
    void copy_ends(const ColumnWeight &w, int64_t first) {
        const int64_t n = w.words - first;
        const auto shift = static_cast<uint16_t>(16 * w.words - static_cast<int64_t>(w.step_bits) * w.steps());
        const auto back = static_cast<uint16_t>(16 - shift);
        for (int64_t i = 0; i < count; ++i) {
            const uint16_t *words = unit[i];
            auto *out = const_cast<uint16_t *>(last[i]);
            for (int64_t word = 0; word < n; ++word) { // of a size that is known here: no call
                __builtin_memcpy(out + word * kTileRows, words + (first + word) * kTileRows, 32);
            }
            Lanes next;
            __builtin_memcpy(&next, words, 32);
            if (shift != 0) {
                Lanes second;
                __builtin_memcpy(&second, w.words > 1 ? words + kTileRows : words, 32);
                next = next << shift | second >> back;
            }
            __builtin_memcpy(out + n * kTileRows, &next, 32);
        }
    }

private:
    using Lanes [[gnu::vector_size(32)]] = uint16_t;
};

template <int N, int I = 0, class F>
SEEDDELTA_INLINE void with_phase(int64_t phase, F &&f) {
    if constexpr (I + 1 == N) {
        f.template operator()<I>();
    } else if (phase == I) {
        f.template operator()<I>();
    } else {
        with_phase<N, I + 1>(phase, f);
    }
}

// Where the words of a slice are: unit[i] + offset; `ahead` from the beginning of any unit.
struct SliceUnits {
    const uint16_t *const *unit;
    int64_t offset;
    int64_t ahead;
};

// A slice of 64 outputs begins 4 / V steps after the one before, 4 * V slices are a chunk of 16 steps and K words.
template <int K, int V>
struct SlicePlace {
    static constexpr int64_t phases = 4 * V;
    int64_t last; // the last chunk
    explicit SlicePlace(const ColumnWeight &w) : last((w.steps() - 1) / 16) {}
    SliceUnits units(const UnitGroup &g, int64_t slice) const {
        const int64_t chunk = slice / phases;
        return {chunk == last ? g.last : g.unit, chunk == last ? 0 : chunk * K * kTileRows,
                slice * K * kTileRows / phases};
    }
};

template <class Columns>
void columns_trellis_simd(const ColumnWeight &w, const ColumnInput &in, int64_t begin, int64_t end, float *y) {
    __builtin_memset(y + begin, 0, static_cast<size_t>(end - begin) * sizeof(float));
    alignas(64) float rest[kOutputSlice] = {}; // the slice that y has no room for
    const int64_t first = begin / kOutputSlice;
    const int64_t whole = end / kOutputSlice;
    const int64_t last = (end + kOutputSlice - 1) / kOutputSlice;
    UnitGroup group;
    with_rate(w, [&]<int K, int V, bool Narrow>() {
        const typename Columns::Tables tables(w.multiplier);
        const SlicePlace<K, V> place(w);
        constexpr int64_t phases = place.phases;
        for (int64_t g = 0; g < in.n_groups; ++g) {
            const int32_t from = in.begin[g];
            if (from == in.begin[g + 1]) {
                continue;
            }
            group.gather(w, in.index + from, 0, in.q + from, in.begin[g + 1] - from, Columns::kUnits);
            if ((last - 1) / phases == place.last) {
                group.copy_ends(w, place.last * K);
            }
            const int32_t after = g + 2 <= in.n_groups ? in.begin[g + 1] : from;
            group.prefetch(w, in.index + after, (g + 2 <= in.n_groups ? in.begin[g + 2] : in.begin[g + 1]) - after);
            const float scale = in.scale[g];
            const auto single = [&]<int Phase>(int64_t slice) SEEDDELTA_INLINE_LAMBDA {
                Columns::template slice<K, V, Narrow, Phase>(place.units(group, slice), group, tables, scale,
                                                             slice < whole ? y + slice * kOutputSlice : rest);
            };
            // a slice and the one a chunk later have the same phase
            for (int64_t base = first; base < last; base += 2 * phases) {
                for (int64_t low = base; low < base + phases && low < last; ++low) {
                    const int64_t high = low + phases;
                    with_phase<phases>(low % phases, [&]<int Phase>() SEEDDELTA_INLINE_LAMBDA {
                        if constexpr (Columns::kPairs) {
                            if (high < whole) {
                                Columns::template pair<K, V, Narrow, Phase>(
                                    place.units(group, low), place.units(group, high), group, tables, scale,
                                    y + low * kOutputSlice, y + high * kOutputSlice);
                                return;
                            }
                        }
                        single.template operator()<Phase>(low);
                        if (high < last) {
                            single.template operator()<Phase>(high);
                        }
                    });
                }
            }
        }
    });
    __builtin_memcpy(y + whole * kOutputSlice, rest, static_cast<size_t>(end - whole * kOutputSlice) * sizeof(float));
}

template <class Columns>
void columns_trellis_many_simd(const ColumnWeight &w, const Activations &a, int64_t begin, int64_t end, float *y,
                               int64_t y_stride) {
    for (int64_t token = 0; token < a.n_tokens; ++token) {
        __builtin_memset(y + token * y_stride + begin, 0, static_cast<size_t>(end - begin) * sizeof(float));
    }
    alignas(64) uint8_t panel[kGroup * kOutputSlice * Columns::kBytes];
    UnitGroup group;
    const int64_t groups = a.stride / kGroup;
    with_rate(w, [&]<int K, int V, bool Narrow>() {
        const typename Columns::Tables tables(w.multiplier);
        const SlicePlace<K, V> place(w);
        // chunk by chunk: the tokens' sums stay in the cache, and a unit is read in pieces of K words
        for (int64_t chunk = begin; chunk < end;) {
            const int64_t chunk_outputs = place.phases * kOutputSlice;
            const int64_t next = (chunk / chunk_outputs + 1) * chunk_outputs;
            for (int64_t g = 0; g < groups; ++g) {
                const int64_t n = w.n_in - g * kGroup < kGroup ? w.n_in - g * kGroup : kGroup;
                group.gather(w, nullptr, g * kGroup, a.q + g * kGroup, n, Columns::kUnits);
                if (chunk / chunk_outputs == place.last) {
                    group.copy_ends(w, place.last * K);
                }
                for (int64_t o = chunk; o < next && o < end; o += kOutputSlice) {
                    const int64_t slice = o / kOutputSlice;
                    with_phase<place.phases>(slice % place.phases, [&]<int Phase>() SEEDDELTA_INLINE_LAMBDA {
                        Columns::template decode<K, V, Narrow, Phase>(place.units(group, slice), group.count, tables,
                                                                      panel);
                    });
                    if (o + kOutputSlice <= end) {
                        Columns::multiply_panel(a, 0, a.n_tokens, g, panel, group.count, y + o, y_stride);
                        continue;
                    }
                    for (int64_t token = 0; token < a.n_tokens; ++token) { // y has no room for the whole slice
                        alignas(64) float rest[kOutputSlice] = {};
                        float *out = y + token * y_stride + o;
                        const auto bytes = static_cast<size_t>(end - o) * sizeof(float);
                        __builtin_memcpy(rest, out, bytes);
                        Columns::multiply_panel(a, token, 1, g, panel, group.count, rest, 0);
                        __builtin_memcpy(out, rest, bytes);
                    }
                }
            }
            chunk = next;
        }
    });
}

} // namespace
} // namespace seeddelta
