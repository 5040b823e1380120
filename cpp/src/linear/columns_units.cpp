// Which units a token computes.
#include <cstring>

#include "linear/columns_parts.hpp"

namespace seeddelta {

// Scratch of a gate. Of the calling thread, which must not use more of its own meanwhile.
static GateScratch gate_scratch(int64_t n_in) {
    Pieces pieces(gate_bytes(n_in));
    GateScratch scratch;
    scratch.score = pieces.take<int32_t>(n_in);
    scratch.bits = pieces.take<uint64_t>(2 * bitmap_words(n_in));
    return scratch;
}

void choose_units(Gate *gate, const float *x, int64_t n_in, Workspace::Impl &ws) {
    bool finite = true;
    ws.mode = EventMode::full;
    ws.listed = n_in;
    ws.changes = false;
    if (gate == nullptr) {
        finite = all_finite(x, n_in);
    } else {
        auto *index = ws.index.data;
        auto *value = ws.value.data;
        auto *bits = ws.bits.data;
        GateScratch scratch = gate_scratch(n_in);
        scratch.bits = bits; // of exact zeros alone: those that it leaves there
        const bool zeros = gate->zeros_alone();
        if (gate->events()) {
            ws.mode = gate->send(x, scratch, index, value, ws.listed, finite);
            ws.changes = ws.mode != EventMode::full;
        } else {
            ws.mode = gate->check_due() ? EventMode::check : EventMode::full;
            ws.listed = gate->select(x, 0, scratch, index, value, finite);
            ws.changes = gate->spec().kwta.renormalize;
            gate->advance(1);
        }
        if (!zeros) {
            std::fill_n(bits, bitmap_words(n_in), uint64_t{0});
            for (int64_t i = 0; i < ws.listed; ++i) {
                bits[index[i] / 64] |= uint64_t{1} << (index[i] % 64);
            }
        }
    }
    ws.all_finite.store(finite, std::memory_order_relaxed);
    ws.active.store(ws.mode == EventMode::check ? n_in : ws.listed, std::memory_order_relaxed);
}

ActiveSet chosen_units(const float *x, int64_t n_in, Workspace::Impl &ws, int ith, bool reuse) {
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

} // namespace seeddelta
