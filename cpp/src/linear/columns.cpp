// Drives one product over columns: the units once, then every thread its own slice of outputs.
#include "seeddelta/columns.hpp"

#include <algorithm>
#include <chrono>

#include "format/rotation.hpp"
#include "linear/columns_parts.hpp"
#include "simd/prefetch.hpp"

namespace seeddelta {

namespace {

void multiply(const ColumnWeight &w, const ActiveSet &set, Slice slice, float *y) {
    if (slice.begin == slice.end) {
        return;
    }
    switch (w.kind) {
    case ColumnKind::f16:
        each_strip(w, slice, [&](const ColumnWeight &strip, Slice inside, int64_t first) {
            kernels().linear.columns_f16(strip, set, inside.begin, inside.end, y + first);
        });
        break;
    case ColumnKind::lanes:
        kernels().linear.columns_lanes(w, quantize_units(w, set), slice.begin, slice.end, y);
        break;
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
        ws.bits.reserve(2 * bitmap_words(n_in));
        ws.squares.reserve(int64_t{2} * threads);
        ws.masked.reserve(n_tokens > 1 ? n_tokens * n_in : 0);
    }
    if (n_tokens > 1 && w.kind == ColumnKind::lanes) {
        const int64_t stride = padded(n_in);
        ws.q.reserve(n_tokens * stride);
        ws.bias.reserve(n_tokens * stride / kGroup);
        ws.scale.reserve(n_tokens * stride / kGroup);
    }
}

// One token and all units: nothing is chosen, and no thread waits for another.
void decode_all(const ColumnWeight &w, const float *x, float *y, Workspace::Impl &ws, int ith, int nth, bool reuse,
                ComputeStatus &status) {
    if (ith == 0 && !reuse) {
        ws.active.store(w.n_in, std::memory_order_relaxed);
        if (!all_finite(x, w.n_in)) {
            status.nonfinite_input.store(true, std::memory_order_relaxed);
        }
    }
    multiply(w, {w.n_in, nullptr, x}, slice_of(w, ith, nth), y);
}

// One token: only what is listed is read.
void decode(const ColumnWeight &w, Gate *gate, const float *x, float *y, float *state, Workspace::Impl &ws, int ith,
            int nth, bool reuse) {
    if (!reuse) {
        if (ith == 0) {
            make_room(w, gate != nullptr, 1, nth, ws);
            choose_units(gate, x, w.n_in, ws);
        }
        ws.barrier(nth);
    }
    const Slice slice = slice_of(w, ith, nth);
    if (gate != nullptr && gate->zeros_alone() && multiplies_all(w, ws.listed)) {
        multiply(w, {w.n_in, nullptr, x}, slice, y); // and nobody lists them
        return;
    }
    const ActiveSet set = chosen_units(x, w.n_in, ws, ith, reuse);
    if (gate != nullptr && uses_signs(w, *gate)) {
        multiply_signs(w, gate->spec().pack, x, ws.bits.data, set, slice, y);
        if (ith == 0) {
            gate->count_signs();
        }
        return;
    }
    if (gate == nullptr || (!gate->events() && ws.mode != EventMode::check)) {
        multiply(w, set, slice, y);
        return;
    }
    if (set.n == 0 && ws.mode == EventMode::delta) { // nothing has changed
        std::copy(state + slice.begin, state + slice.end, y + slice.begin);
        return;
    }
    const auto begin = std::chrono::steady_clock::now();
    multiply(w, set, slice, y);
    follow(*gate, slice, y, state, ws, ith, nth, [&] { multiply(w, {w.n_in, ws.every.data, x}, slice, y); });
    if (ith == 0 && gate->events()) {
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
    if (w.kind == ColumnKind::f16) {
        each_strip(w, {begin, end}, [&](const ColumnWeight &strip, Slice inside, int64_t first) {
            kernels().linear.columns_f16_batch(strip, x, n_tokens, x_stride, inside.begin, inside.end, y + first,
                                               y_stride);
        });
        return;
    }
    const int64_t stride = padded(w.n_in);
    if (ith == 0 && reuse) { // what was reserved is for the weight before
        make_room(w, gate != nullptr, n_tokens, nth, ws);
    }
    ws.barrier(nth);
    for (int64_t token = n_tokens * ith / nth; token < n_tokens * (ith + 1) / nth; ++token) {
        quantize_row(w, x + token * x_stride, token, ws);
    }
    ws.barrier(nth);
    if (begin < end) {
        const Activations rows{n_tokens, w.n_in, stride, ws.q.data, ws.scale.data, ws.bias.data, x, x_stride, nullptr};
        kernels().linear.columns_lanes_many(w, rows, begin, end, y, y_stride);
    }
}

// The outputs of a rotated weight, back: whole tokens by one thread each. Threads that shared a token would write to
// the same cache lines again and again. One token is for the last thread that is ready: nobody waits.
void rotate_outputs(const ColumnWeight &w, float *y, int64_t n_tokens, int64_t y_stride, Workspace::Impl &ws, int ith,
                    int nth) {
    if (n_tokens == 1) {
        if (ws.last(nth)) {
            kernels().linear.rotate_back(y, w.n_out, w.rotation_block, w.rotation_seed);
        }
        return;
    }
    ws.barrier(nth);
    for (int64_t token = n_tokens * ith / nth; token < n_tokens * (ith + 1) / nth; ++token) {
        kernels().linear.rotate_back(y + token * y_stride, w.n_out, w.rotation_block, w.rotation_seed);
    }
}

} // namespace

int64_t columns_reserve(const ColumnWeight &w, bool gated, int64_t n_tokens, int threads, Workspace &workspace) {
    make_room(w, gated, n_tokens, threads, workspace.impl());
    return std::max({gate_bytes(w.n_in), unit_bytes(w.n_in), sign_bytes(w.n_in)});
}

bool columns_prefetch(const ColumnWeight &w, int ith, int nth) {
    const Slice slice = slice_of(w, ith, nth);
    if (w.kind != ColumnKind::lanes || slice.begin == slice.end) {
        return false;
    }
    const ColumnStrip strip(w, slice.begin);
    prefetch_near(strip.codes, strip.bytes * w.n_in);
    prefetch_near(reinterpret_cast<const uint8_t *>(w.input_scale), w.n_in * static_cast<int64_t>(sizeof(float)));
    return true;
}

void columns_compute_active(const ColumnWeight &w, const ActiveSet &active, float *y) {
    multiply(w, active, {0, w.n_out}, y);
    if (w.rotation_block > 1) {
        kernels().linear.rotate_back(y, w.n_out, w.rotation_block, w.rotation_seed);
    }
}

ColumnCounts columns_compute_threaded(const ColumnWeight &w, Gate *gate, const float *x, int64_t n_tokens,
                                      int64_t x_stride_bytes, float *y, int64_t y_stride_bytes, Workspace &workspace,
                                      int ith, int nth, bool reuse_selection, ComputeStatus &status, float *state) {
    Workspace::Impl &ws = workspace.impl();
    const int64_t x_stride = x_stride_bytes / static_cast<int64_t>(sizeof(float));
    const int64_t y_stride = y_stride_bytes / static_cast<int64_t>(sizeof(float));
    Gate *working = gate != nullptr && gate->works(n_tokens) ? gate : nullptr;
    const bool all = w.kind == ColumnKind::lanes && working == nullptr && n_tokens == 1;
    if (all) {
        decode_all(w, x, y, ws, ith, nth, reuse_selection, status);
    } else if (n_tokens == 1) {
        decode(w, working, x, y, state, ws, ith, nth, reuse_selection);
    } else {
        prompt(w, working, x, n_tokens, x_stride, y, y_stride, ws, ith, nth, reuse_selection);
        if (gate != nullptr && gate->events() && ith == 0) {
            gate->event().forget(); // the states of the weights are those before the prompt
        }
    }
    if (!all && !ws.all_finite.load(std::memory_order_relaxed)) {
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
