// The parts of a product over columns that its drivers (columns.cpp) share: scratch, the units of a token, their
// rounding, and signs.
#pragma once
#include <algorithm>
#include <cmath>

#include "format/column_lanes.hpp"
#include "format/finite.hpp"
#include "gating/compose.hpp"
#include "linear/workspace.hpp"
#include "seeddelta/columns.hpp"

namespace seeddelta {

// Pieces of one stretch of the calling thread's scratch, each 64-byte aligned. Count the bytes first, then take.
class Pieces {
public:
    template <class T>
    static int64_t bytes(int64_t n) {
        return (n * static_cast<int64_t>(sizeof(T)) + 63) / 64 * 64;
    }
    explicit Pieces(int64_t bytes) : at_(thread_scratch(bytes)) {}
    template <class T>
    T *take(int64_t n) {
        T *piece = reinterpret_cast<T *>(at_);
        at_ += bytes<T>(n);
        return piece;
    }

private:
    uint8_t *at_;
};

inline int64_t gate_bytes(int64_t n_in) {
    return Pieces::bytes<int32_t>(n_in) + Pieces::bytes<uint64_t>(2 * bitmap_words(n_in));
}

inline int64_t unit_bytes(int64_t n_in) {
    const int64_t n = padded(n_in);
    return Pieces::bytes<float>(n) + Pieces::bytes<int32_t>(n + kListMore) + Pieces::bytes<int8_t>(n) +
           Pieces::bytes<int8_t>(n + kListMore) + 3 * Pieces::bytes<float>(n / kGroup + 1);
}

inline int64_t list_stride(int64_t n_in) {
    return (n_in + 15) / 16 * 16; // whole cache lines
}

// Share of the inputs of byte lanes above which all are multiplied, those that are not listed by 0: neighbors are one
// stream, and no addresses have to be looked up.
inline constexpr double kMostListed = 0.4;
inline bool multiplies_all(const ColumnWeight &w, int64_t listed) {
    return w.kind == ColumnKind::lanes && static_cast<double>(listed) > kMostListed * static_cast<double>(w.n_in);
}

struct Slice {
    int64_t begin, end;
};

inline Slice slice_of(const ColumnWeight &w, int ith, int nth) {
    if (w.kind == ColumnKind::lanes) {
        return {column_strip_begin(w.n_out, ith, nth), column_strip_begin(w.n_out, ith + 1, nth)};
    }
    const int64_t slices = (w.n_out + kOutputSlice - 1) / kOutputSlice;
    return {slices * ith / nth * kOutputSlice, std::min(slices * (ith + 1) / nth * kOutputSlice, w.n_out)};
}

// Strips of f16: no more than kStripOutputs outputs in one, and two, so that each of two threads has its own.
inline constexpr int64_t kStripOutputs = 2048;
inline int dense_strips(int64_t n_out) {
    int strips = n_out > kOutputSlice ? 2 : 1;
    while (strips * kStripOutputs < n_out) {
        strips *= 2;
    }
    return strips;
}

// Calls use(weight, slice, output) for each strip of f16 that the slice has outputs of: the strip as a weight of
// its own, the slice within it, and its first output.
template <class Use>
void each_strip(const ColumnWeight &w, Slice slice, Use &&use) {
    for (int i = 0; i < w.strips; ++i) {
        const Slice strip = slice_of(w, i, w.strips);
        const Slice inside{std::max(slice.begin, strip.begin) - strip.begin,
                           std::min(slice.end, strip.end) - strip.begin};
        if (inside.begin < inside.end) {
            ColumnWeight part = w;
            part.strips = 1;
            part.n_out = strip.end - strip.begin;
            part.f16 = w.f16 + strip.begin * w.n_in;
            use(part, inside, strip.begin);
        }
    }
}

// y is the product of what was listed: the whole, or with events the change of the state, which it becomes. In a check
// full(), the full product into y, is compared with it and replaces it.
template <class Full>
void follow(Gate &gate, Slice slice, float *y, float *state, Workspace::Impl &ws, int ith, int nth, Full &&full) {
    if (ws.mode == EventMode::full) {
        std::copy(y + slice.begin, y + slice.end, state + slice.begin);
        return;
    }
    for (int64_t o = slice.begin; o < slice.end; ++o) {
        state[o] = gate.events() ? state[o] + y[o] : y[o];
        y[o] = state[o];
    }
    if (ws.mode == EventMode::delta) {
        return;
    }
    full();
    double gap = 0.0;
    double size = 0.0;
    for (int64_t o = slice.begin; o < slice.end; ++o) {
        const auto difference = static_cast<double>(state[o]) - static_cast<double>(y[o]);
        gap += difference * difference;
        size += static_cast<double>(y[o]) * static_cast<double>(y[o]);
        state[o] = y[o];
    }
    double *mine = ws.squares.data + int64_t{2} * ith;
    mine[0] = gap;
    mine[1] = size;
    ws.barrier(nth);
    if (ith == 0) {
        double gaps = 0.0;
        double sizes = 0.0;
        for (int64_t i = 0; i < nth; ++i) {
            gaps += ws.squares.data[2 * i];
            sizes += ws.squares.data[2 * i + 1];
        }
        gate.report_gap(sizes > 0.0 ? static_cast<float>(std::sqrt(gaps / sizes)) : 0.0F);
    }
}

// columns_units.cpp
// Chooses the units of one token, null: all of them. What others need of it is small, since a line that one core has
// written takes another one long to get: bits of the units, from which every thread lists them for itself.
void choose_units(Gate *gate, const float *x, int64_t n_in, Workspace::Impl &ws);
// What was chosen, for thread `ith`. With `reuse` it has listed it before.
ActiveSet chosen_units(const float *x, int64_t n_in, Workspace::Impl &ws, int ith, bool reuse);
// Masks the tokens of a prompt into the workspace, each thread its share.
void mask_tokens(Gate &gate, const float *x, int64_t n_tokens, int64_t x_stride, int64_t n_in, Workspace::Impl &ws,
                 int ith, int nth);

// columns_quantize.cpp
// Units of `set` scaled and quantized, in the calling thread's scratch: cheaper than to wait for one thread to do it.
ColumnInput quantize_units(const ColumnWeight &w, const ActiveSet &set);
// One token's inputs (those that are not active are 0) scaled and quantized, to row `token` of the workspace.
void quantize_row(const ColumnWeight &w, const float *x, int64_t token, Workspace::Impl &ws);

// columns_signs.cpp
int64_t sign_bytes(int64_t n_in);
// Whether a product of one token is that of signs.
bool uses_signs(const ColumnWeight &w, const Gate &gate);
// The inputs of `set`, whose bits are `chosen`, as signs times their mean magnitude, the weights as theirs: only bits
// are read.
void multiply_signs(const ColumnWeight &w, const PackSpec &spec, const float *x, const uint64_t *chosen,
                    const ActiveSet &set, Slice slice, float *y);

} // namespace seeddelta
