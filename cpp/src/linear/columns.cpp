// Drives one product over columns: the units once, then every thread its own slice of outputs.
#include "seeddelta/columns.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>

#include "format/rotation.hpp"
#include "gating/compose.hpp"
#include "linear/workspace.hpp"
#include "simd/columns_scalar.hpp"

namespace seeddelta {

namespace {

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

bool all_finite(const float *x, int64_t n) {
    uint32_t worst = 0;
    for (int64_t i = 0; i < n; ++i) {
        worst = std::max(worst, __builtin_bit_cast(uint32_t, x[i]) & 0x7F800000U);
    }
    return worst != 0x7F800000U;
}

bool needs_quantised(const ColumnWeight &w) {
    return w.kind != ColumnKind::f16;
}

int64_t gate_bytes(int64_t n_in) {
    return Pieces::bytes<int32_t>(n_in) + Pieces::bytes<uint64_t>(2 * bitmap_words(n_in));
}

int64_t unit_bytes(int64_t n_in) {
    const int64_t n = padded(n_in);
    return Pieces::bytes<float>(n) + 2 * Pieces::bytes<int16_t>(n) + 3 * Pieces::bytes<float>(n / kGroup + 1);
}

int64_t sign_bytes(int64_t n_in) {
    return 4 * Pieces::bytes<uint64_t>(bitmap_words(n_in));
}

// Scratch of a gate. Of the calling thread, which must not use more of its own meanwhile.
GateScratch gate_scratch(int64_t n_in) {
    Pieces pieces(gate_bytes(n_in));
    GateScratch scratch;
    scratch.score = pieces.take<int32_t>(n_in);
    scratch.bits = pieces.take<uint64_t>(2 * bitmap_words(n_in));
    return scratch;
}

int64_t list_stride(int64_t n_in) {
    return (n_in + 15) / 16 * 16; // whole cache lines
}

// Chooses the units of one token. What others need of it is small, since a line that one core has written takes another
// one long to get: bits of the units, from which every thread lists them for itself.
void choose(Gate *gate, const float *x, int64_t n_in, Workspace::Impl &ws) {
    bool finite = true;
    ws.mode = EventMode::full;
    ws.listed = n_in;
    ws.changes = false;
    if (gate == nullptr) {
        finite = all_finite(x, n_in);
    } else {
        auto *index = ws.index.data;
        auto *value = ws.value.data;
        if (gate->events()) {
            ws.mode = gate->send(x, gate_scratch(n_in), index, value, ws.listed, finite);
            ws.changes = ws.mode != EventMode::full;
        } else {
            ws.listed = gate->select(x, 0, gate_scratch(n_in), index, value, finite);
            ws.changes = gate->spec().kwta.renormalise;
            gate->advance(1);
        }
        auto *bits = ws.bits.data;
        std::fill_n(bits, bitmap_words(n_in), uint64_t{0});
        for (int64_t i = 0; i < ws.listed; ++i) {
            bits[index[i] / 64] |= uint64_t{1} << (index[i] % 64);
        }
    }
    ws.all_finite.store(finite, std::memory_order_relaxed);
    ws.active.store(ws.mode == EventMode::check ? n_in : ws.listed, std::memory_order_relaxed);
}

// What was chosen, for thread `ith`. With `reuse` it has listed it before.
ActiveSet chosen(const float *x, int64_t n_in, Workspace::Impl &ws, int ith, bool reuse) {
    if (ws.listed == n_in && !ws.changes) {
        return {n_in, ws.every.data, x};
    }
    auto *index = ws.index.data + ith * list_stride(n_in);
    auto *value = ws.value.data + ith * list_stride(n_in);
    if (ith > 0 && !reuse) {
        list_bits(x, ws.bits.data, n_in, index, value);
    }
    return {ws.listed, index, ws.changes ? ws.value.data : value};
}

constexpr float kLargest = 32767.0F;

// Groups of kGroup inputs to 16 bits; x and q have n, a multiple of kGroup. Written to be the same in every unit.
void quantise_wide(const float *x, int64_t n, int16_t *q, float *scale) {
    for (int64_t start = 0; start < n; start += kGroup) {
        float amax = 0.0F;
        for (int64_t i = start; i < start + kGroup; ++i) {
            const float magnitude = std::fabs(x[i]);
            amax = amax < magnitude ? magnitude : amax;
        }
        // Below 2^-100 the inverse would overflow, and the group is nothing beside the others.
        const bool usable = amax >= 0x1p-100F && amax <= 0x1p127F;
        scale[start / kGroup] = usable ? amax / kLargest : 0.0F;
        const float inverse = usable ? kLargest / amax : 0.0F;
        constexpr float round = 12582912.0F; // 1.5 * 2^23: what is added to it is rounded to an integer, ties to even
        for (int64_t i = start; usable && i < start + kGroup; ++i) {
            const float rounded = (x[i] * inverse + round) - round;
            q[i] = rounded == rounded ? static_cast<int16_t>(static_cast<int32_t>(rounded)) : int16_t{0}; // NaN: 0
        }
        for (int64_t i = start; !usable && i < start + kGroup; ++i) {
            q[i] = 0;
        }
    }
}

// Units of `set` scaled and quantised, in the calling thread's scratch: cheaper than to wait for one thread to do it.
ColumnInput quantise_units(const ColumnWeight &w, const ActiveSet &set) {
    const int64_t n = padded(w.n_in);
    const int64_t groups = n / kGroup;
    const bool wide = w.kind == ColumnKind::i8;
    Pieces pieces(unit_bytes(w.n_in));
    auto *x = pieces.take<float>(n);
    auto *dense = pieces.take<int16_t>(n);
    auto *q = pieces.take<int16_t>(n);
    auto *scale = pieces.take<float>(groups);
    auto *bias = pieces.take<int32_t>(groups);
    auto *begin = pieces.take<int32_t>(groups + 1);
    auto *dense8 = reinterpret_cast<int8_t *>(dense);
    auto *q8 = reinterpret_cast<int8_t *>(q);
    std::memset(x, 0, static_cast<size_t>(n) * sizeof(float));
    for (int64_t i = 0; i < set.n; ++i) {
        x[set.index[i]] = set.value[i] * w.unit_scale[set.index[i]];
    }
    if (wide) {
        quantise_wide(x, n, dense, scale);
    } else {
        kernels().quantize(x, w.n_in, dense8, scale, bias);
    }
    int64_t i = 0;
    for (int64_t g = 0; g < groups; ++g) {
        begin[g] = static_cast<int32_t>(i);
        for (; i < set.n && set.index[i] < (g + 1) * kGroup; ++i) {
            if (wide) {
                q[i] = dense[set.index[i]];
            } else {
                q8[i] = dense8[set.index[i]];
            }
        }
    }
    begin[groups] = static_cast<int32_t>(i);
    return {set.n, set.index, wide ? nullptr : q8, wide ? q : nullptr, groups, begin, scale};
}

// One token's inputs (those that are not active are 0) scaled and quantised, to row `token` of the workspace.
void quantise_row(const ColumnWeight &w, const float *x, int64_t token, Workspace::Impl &ws) {
    const int64_t stride = padded(w.n_in);
    int16_t *row = ws.wide.data + token * stride;
    float *scale = ws.scale.data + token * (stride / kGroup);
    Pieces pieces(Pieces::bytes<float>(stride));
    auto *scaled = pieces.take<float>(stride);
    std::memset(scaled, 0, static_cast<size_t>(stride) * sizeof(float));
    for (int64_t i = 0; i < w.n_in; ++i) {
        scaled[i] = x[i] * w.unit_scale[i];
    }
    if (w.kind == ColumnKind::i8) {
        quantise_wide(scaled, stride, row, scale);
        return;
    }
    kernels().quantize(scaled, w.n_in, ws.q.data + token * stride, scale, ws.bias.data + token * (stride / kGroup));
}

// Masks the tokens of a prompt into the workspace, each thread its share.
void mask_tokens(Gate &gate, const float *x, int64_t n_tokens, int64_t x_stride, int64_t n_in, Workspace::Impl &ws,
                 int ith, int nth) {
    const bool alone = gate.sequential();
    const int64_t first = alone ? 0 : n_tokens * ith / nth;
    const int64_t last = alone ? (ith == 0 ? n_tokens : 0) : n_tokens * (ith + 1) / nth;
    auto *index = ws.index.data + ith * n_in; // scratch here
    auto *value = ws.value.data + ith * n_in;
    int64_t active = 0;
    bool finite = true;
    for (int64_t token = first; token < last; ++token) {
        bool token_finite = true;
        float *row = ws.masked.data + token * n_in;
        const float *in = x + token * x_stride;
        if (gate.events()) {
            active += gate.send_row(in, gate_scratch(n_in), index, row, token_finite);
        } else {
            const int64_t n = gate.select(in, token, gate_scratch(n_in), index, value, token_finite);
            std::memset(row, 0, static_cast<size_t>(n_in) * sizeof(float));
            for (int64_t i = 0; i < n; ++i) {
                row[index[i]] = value[i];
            }
            active += n;
        }
        finite = finite && token_finite;
    }
    ws.active.fetch_add(active, std::memory_order_relaxed);
    if (!finite) {
        ws.all_finite.store(false, std::memory_order_relaxed);
    }
}

struct Slice {
    int64_t begin, end;
};

Slice slice_of(const ColumnWeight &w, int ith, int nth) {
    const int64_t slices = (w.n_out + kOutputSlice - 1) / kOutputSlice;
    return {slices * ith / nth * kOutputSlice, std::min(slices * (ith + 1) / nth * kOutputSlice, w.n_out)};
}

void multiply(const ColumnWeight &w, const ActiveSet &set, Slice slice, float *y) {
    if (slice.begin == slice.end) {
        return;
    }
    switch (w.kind) {
    case ColumnKind::f16:
        kernels().columns_f16(w, set, slice.begin, slice.end, y);
        break;
    case ColumnKind::i8:
        kernels().columns_i8(w, quantise_units(w, set), slice.begin, slice.end, y);
        break;
    case ColumnKind::trellis:
        kernels().columns_trellis(w, quantise_units(w, set), slice.begin, slice.end, y);
        break;
    }
}

// The inputs of `set` as signs times their mean magnitude, the weights as theirs: only bits are read.
void multiply_signs(const ColumnWeight &w, const PackSpec &spec, const float *x, const uint64_t *chosen,
                    const ActiveSet &set, Slice slice, float *y) {
    const int64_t words = bitmap_words(w.n_in);
    Pieces pieces(sign_bytes(w.n_in));
    auto *positive = pieces.take<uint64_t>(words);
    auto *negative = pieces.take<uint64_t>(words);
    auto *equal = pieces.take<uint64_t>(words);
    auto *opposite = pieces.take<uint64_t>(words);
    kernels().bitmaps(x, w.n_in, 0.0F, positive, negative);
    for (int64_t i = 0; i < words; ++i) {
        positive[i] &= chosen[i];
        negative[i] &= chosen[i];
    }
    float sum = 0.0F;
    for (int64_t i = 0; i < set.n; ++i) {
        sum += std::fabs(set.value[i]);
    }
    const float gamma = set.n > 0 ? sum / static_cast<float>(set.n) : 0.0F;
    const auto popcount = spec.vector_popcount ? kernels().popcount : popcount_scalar;
    for (int64_t o = slice.begin; o < slice.end; ++o) {
        const uint64_t *plus = w.sign_bits + o * 2 * words;
        const uint64_t *minus = plus + words;
        for (int64_t i = 0; i < words; ++i) {
            equal[i] = (positive[i] & plus[i]) | (negative[i] & minus[i]);
            opposite[i] = (positive[i] & minus[i]) | (negative[i] & plus[i]);
        }
        y[o] = gamma * w.sign_gamma[o] * static_cast<float>(popcount(equal, words) - popcount(opposite, words));
    }
}

// y is the product of what was listed: the whole, or the change of the state. It becomes the state's.
void follow_events(const ColumnWeight &w, Gate &gate, const float *x, Slice slice, float *y, float *state,
                   Workspace::Impl &ws, int ith, int nth) {
    if (ws.mode == EventMode::full) {
        std::copy(y + slice.begin, y + slice.end, state + slice.begin);
        return;
    }
    for (int64_t o = slice.begin; o < slice.end; ++o) {
        state[o] += y[o];
        y[o] = state[o];
    }
    if (ws.mode == EventMode::delta) {
        return;
    }
    multiply(w, {w.n_in, ws.every.data, x}, slice, y);
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

// Room in the workspace for a product. Thread 0 does it, while the others wait.
void make_room(const ColumnWeight &w, bool gated, int64_t n_tokens, int threads, Workspace::Impl &ws) {
    const int64_t n_in = w.n_in;
    if (n_tokens == 1 && ws.every.capacity < n_in) {
        auto *every = ws.every.reserve(n_in);
        for (int64_t i = 0; i < n_in; ++i) {
            every[i] = static_cast<int32_t>(i);
        }
    }
    if (gated) {
        ws.index.reserve(threads * list_stride(n_in));
        ws.value.reserve(threads * list_stride(n_in));
        ws.bits.reserve(bitmap_words(n_in));
        ws.squares.reserve(int64_t{2} * threads);
        ws.masked.reserve(n_tokens > 1 ? n_tokens * n_in : 0);
    }
    if (n_tokens > 1 && needs_quantised(w)) {
        const int64_t stride = padded(n_in);
        ws.wide.reserve(n_tokens * stride);
        ws.q.reserve(n_tokens * stride);
        ws.bias.reserve(n_tokens * stride / kGroup);
        ws.scale.reserve(n_tokens * stride / kGroup);
    }
}

// One token: only what is listed is read.
void decode(const ColumnWeight &w, Gate *gate, const float *x, float *y, float *state, Workspace::Impl &ws, int ith,
            int nth, bool reuse) {
    if (!reuse) {
        if (ith == 0) {
            make_room(w, gate != nullptr, 1, nth, ws);
            choose(gate, x, w.n_in, ws);
        }
        ws.barrier(nth);
    }
    const Slice slice = slice_of(w, ith, nth);
    const ActiveSet set = chosen(x, w.n_in, ws, ith, reuse);
    if (gate != nullptr && w.sign_bits != nullptr && gate->signs()) {
        multiply_signs(w, gate->spec().pack, x, ws.bits.data, set, slice, y);
        if (ith == 0) {
            gate->count_signs();
        }
        return;
    }
    if (gate == nullptr || !gate->events()) {
        multiply(w, set, slice, y);
        return;
    }
    if (set.n == 0 && ws.mode == EventMode::delta) { // nothing has changed
        std::copy(state + slice.begin, state + slice.end, y + slice.begin);
        return;
    }
    const auto begin = std::chrono::steady_clock::now();
    multiply(w, set, slice, y);
    follow_events(w, *gate, x, slice, y, state, ws, ith, nth);
    if (ith == 0) {
        const std::chrono::duration<double, std::nano> spent = std::chrono::steady_clock::now() - begin;
        gate->event().report_time(spent.count());
    }
}

// Several tokens: all units are read once for all of them, inactive inputs are 0.
void prompt(const ColumnWeight &w, Gate *gate, const float *x, int64_t n_tokens, int64_t x_stride, float *y,
            int64_t y_stride, Workspace::Impl &ws, int ith, int nth, bool reuse) {
    if (!reuse) {
        if (ith == 0) {
            ws.all_finite.store(true, std::memory_order_relaxed);
            ws.active.store(0, std::memory_order_relaxed);
            make_room(w, gate != nullptr, n_tokens, nth, ws);
        }
        ws.barrier(nth);
        if (gate != nullptr) {
            mask_tokens(*gate, x, n_tokens, x_stride, w.n_in, ws, ith, nth);
        } else {
            bool finite = true;
            for (int64_t token = n_tokens * ith / nth; token < n_tokens * (ith + 1) / nth; ++token) {
                finite = finite && all_finite(x + token * x_stride, w.n_in);
                ws.active.fetch_add(w.n_in, std::memory_order_relaxed);
            }
            if (!finite) {
                ws.all_finite.store(false, std::memory_order_relaxed);
            }
        }
        ws.barrier(nth);
        if (gate != nullptr && ith == 0 && !gate->events()) {
            gate->advance(n_tokens);
        }
    }
    if (gate != nullptr) {
        x = ws.masked.data;
        x_stride = w.n_in;
    }
    const auto [begin, end] = slice_of(w, ith, nth);
    if (!needs_quantised(w)) {
        if (begin < end) {
            kernels().columns_f16_batch(w, x, n_tokens, x_stride, begin, end, y, y_stride);
        }
        return;
    }
    const int64_t stride = padded(w.n_in);
    if (ith == 0 && reuse) { // what was reserved is for the weight before
        make_room(w, gate != nullptr, n_tokens, nth, ws);
    }
    ws.barrier(nth);
    for (int64_t token = n_tokens * ith / nth; token < n_tokens * (ith + 1) / nth; ++token) {
        quantise_row(w, x + token * x_stride, token, ws);
    }
    ws.barrier(nth);
    const ColumnBatch batch{n_tokens, stride, ws.wide.data, ws.scale.data};
    if (begin < end && w.kind == ColumnKind::i8) {
        kernels().columns_i8_batch(w, batch, begin, end, y, y_stride);
    }
    if (begin < end && w.kind == ColumnKind::trellis) {
        const Activations rows{n_tokens, w.n_in, stride, ws.q.data, ws.scale.data, ws.bias.data, x, x_stride, nullptr};
        kernels().columns_trellis_many(w, rows, begin, end, y, y_stride);
    }
}

// The outputs of a rotated weight, back: whole tokens by one thread each. Threads that shared a token would write to
// the same cache lines again and again.
void rotate_outputs(const ColumnWeight &w, float *y, int64_t n_tokens, int64_t y_stride, Workspace::Impl &ws, int ith,
                    int nth) {
    ws.barrier(nth);
    for (int64_t token = n_tokens * ith / nth; token < n_tokens * (ith + 1) / nth; ++token) {
        kernels().rotate_back(y + token * y_stride, w.n_out, w.rotation_block, w.rotation_seed, 0,
                              w.n_out / w.rotation_block);
    }
}

} // namespace

int64_t columns_reserve(const ColumnWeight &w, bool gated, int64_t n_tokens, int threads, Workspace &workspace) {
    make_room(w, gated, n_tokens, threads, workspace.impl());
    return std::max({gate_bytes(w.n_in), unit_bytes(w.n_in), sign_bytes(w.n_in)});
}

ColumnCounts columns_compute_threaded(const ColumnWeight &w, Gate *gate, const float *x, int64_t n_tokens,
                                      int64_t x_stride_bytes, float *y, int64_t y_stride_bytes, Workspace &workspace,
                                      int ith, int nth, bool reuse_selection, ComputeStatus &status, float *state) {
    Workspace::Impl &ws = workspace.impl();
    const int64_t x_stride = x_stride_bytes / static_cast<int64_t>(sizeof(float));
    const int64_t y_stride = y_stride_bytes / static_cast<int64_t>(sizeof(float));
    Gate *working = gate != nullptr && gate->works(n_tokens) ? gate : nullptr;
    if (n_tokens == 1) {
        decode(w, working, x, y, state, ws, ith, nth, reuse_selection);
    } else {
        prompt(w, working, x, n_tokens, x_stride, y, y_stride, ws, ith, nth, reuse_selection);
        if (gate != nullptr && gate->events() && ith == 0) {
            gate->event().forget(); // the states of the weights are those before the prompt
        }
    }
    if (!ws.all_finite.load(std::memory_order_relaxed)) {
        status.nonfinite_input.store(true, std::memory_order_relaxed);
    }
    const auto [begin, end] = slice_of(w, ith, nth);
    bool finite = true; // a rotation keeps it so
    for (int64_t token = 0; token < n_tokens && begin < end; ++token) {
        finite = all_finite(y + token * y_stride + begin, end - begin) && finite;
    }
    if (!finite) {
        status.nonfinite_output.store(true, std::memory_order_relaxed);
    }
    if (w.rotation_block > 1) {
        rotate_outputs(w, y, n_tokens, y_stride, ws, ith, nth);
    }
    return {ws.active.load(std::memory_order_relaxed), n_tokens * w.n_in};
}

} // namespace seeddelta
