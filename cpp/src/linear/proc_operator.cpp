// proc_sparse matrices, with or without a gate: of the blocks that a row keeps those are read that hold a chosen input.
#include <vector>

#include "format/proc_sparse.hpp"
#include "linear/columns_parts.hpp"
#include "linear/operator.hpp"
#include "linear/workspace.hpp"

namespace seeddelta {

namespace {

constexpr int64_t kFloat = static_cast<int64_t>(sizeof(float));

class ProcOperator final : public Operator {
public:
    ProcOperator(const seeddelta_ctx &ctx, const GateSpec *gate) : ctx_(ctx), gate_(gate), rows_(row_operator(ctx)) {
        if (gate == nullptr) {
            return; // without one every kept block is multiplied
        }
        rows_with_.resize(static_cast<size_t>(proc_blocks(ctx)));
        for (int64_t row = 0; row < ctx.n_out; ++row) {
            for_kept_blocks(ctx, row, [&](int64_t, int64_t block) { ++rows_with_[static_cast<size_t>(block)]; });
        }
    }

    MatrixShape shape() const noexcept override { return rows_->shape(); }
    std::span<const char *const> names() const noexcept override { return rows_->names(); }
    bool fits(WeightUse use) const noexcept override { return rows_->fits(use); }
    InputForm input_form() const noexcept override {
        InputForm form = rows_->input_form();
        form.gate = gate_;
        return form;
    }
    const GateSpec *gate() const noexcept override { return gate_; }

    int64_t reserve(const Work &work, const OperatorState &state, int threads, Workspace &workspace) const override {
        const int64_t bytes = rows_->reserve(work, state, threads, workspace);
        if (state.gate == nullptr || work.use != WeightUse::product) {
            return bytes;
        }
        make_room(work.n_tokens, threads, workspace.impl());
        return std::max(bytes, gate_bytes(ctx_.n_in));
    }

    void run(const Work &work, OperatorState &state, Workspace &workspace, int ith, int nth,
             ComputeStatus &status) const noexcept override {
        Gate *gate = work.use == WeightUse::product ? state.gate : nullptr;
        if (gate == nullptr || !gate->works(work.n_tokens)) {
            Workspace::Impl &ws = workspace.impl();
            rows_->run(work, state, workspace, ith, nth, status);
            if (gate != nullptr && ith == 0) {
                ws.active.store(work.n_tokens * ctx_.n_in, std::memory_order_relaxed);
                ws.listed = ctx_.n_in;
                forget(*gate, work);
            }
        } else if (work.n_tokens == 1) {
            decode(work, *gate, state.outputs.data(), workspace, ith, nth, status);
        } else {
            prompt(work, *gate, workspace, ith, nth, status);
        }
    }

    Tally tally(const Work &work, Workspace &workspace) const noexcept override {
        const Workspace::Impl &ws = workspace.impl();
        const int64_t all = work.n_tokens * ctx_.n_out * ctx_.residual_size;
        if (work.use != WeightUse::product) {
            return {};
        }
        if (gate_ == nullptr) {
            return {.blocks = all};
        }
        const int64_t active = ws.active.load(std::memory_order_relaxed);
        const bool masked = work.n_tokens == 1 && ws.listed < ctx_.n_in;
        return {.blocks = masked ? multiplied(ws) + (ws.mode == EventMode::check ? all : 0) : all,
                .active = active,
                .skipped = work.n_tokens * ctx_.n_in - active};
    }

private:
    // Of two block sizes: matrices that share an input may have different ones.
    const uint8_t *mask(const Workspace::Impl &ws) const {
        return ws.blocks.data + (ctx_.residual_block == 64 ? mask_bytes() : 0);
    }
    int64_t mask_bytes() const { return (ctx_.n_in + 255) / 256; }

    void make_room(int64_t n_tokens, int threads, Workspace::Impl &ws) const {
        ws.index.reserve(threads * list_stride(ctx_.n_in));
        ws.value.reserve(threads * list_stride(ctx_.n_in));
        ws.bits.reserve(2 * bitmap_words(ctx_.n_in));
        ws.squares.reserve(int64_t{2} * threads);
        ws.masked.reserve(n_tokens * ctx_.n_in);
        ws.blocks.reserve(2 * mask_bytes());
    }

    int64_t multiplied(const Workspace::Impl &ws) const {
        int64_t sum = 0;
        for (int64_t block = 0; block < proc_blocks(ctx_); ++block) {
            sum += (mask(ws)[block / 8] >> (block % 8) & 1) != 0 ? rows_with_[static_cast<size_t>(block)] : 0;
        }
        return sum;
    }

    static void forget(Gate &gate, const Work &work) {
        if (work.n_tokens > 1 && gate.spec().event.enabled) {
            gate.event().forget(); // the states of the weights are those before the prompt
        }
    }

    // The inputs that are chosen, the others 0, and which blocks have any.
    void choose(Gate &gate, const float *x, Workspace::Impl &ws) const {
        const int64_t n = ctx_.n_in;
        choose_units(&gate, x, n, ws);
        std::fill_n(ws.masked.data, n, 0.0F);
        std::fill_n(ws.blocks.data, 2 * mask_bytes(), uint8_t{0});
        for (int64_t i = 0; i < ws.listed; ++i) {
            const int64_t at = ws.index.data[i];
            ws.masked.data[at] = ws.value.data[i];
            ws.blocks.data[at / 256] |= static_cast<uint8_t>(1U << (at / 32 % 8));
            ws.blocks.data[mask_bytes() + at / 512] |= static_cast<uint8_t>(1U << (at / 64 % 8));
        }
    }

    void decode(const Work &work, Gate &gate, float *outputs, Workspace &workspace, int ith, int nth,
                ComputeStatus &status) const noexcept {
        Workspace::Impl &ws = workspace.impl();
        if (!work.reuse) {
            if (ith == 0) {
                make_room(1, nth, ws);
                choose(gate, work.x, ws);
            }
            ws.barrier(nth);
        }
        const EventMode mode = ws.mode;
        const bool again = work.reuse && mode != EventMode::check; // a check leaves all inputs
        seeddelta_compute_threaded(ctx_, ws.masked.data, 1, ctx_.n_in * kFloat, work.y, work.y_stride, workspace, ith,
                                   nth, again, status, ws.listed < ctx_.n_in ? mask(ws) : nullptr);
        if (!gate.events() && mode != EventMode::check) {
            return;
        }
        const int64_t tiles = ctx_.n_tiles();
        const Slice slice{std::min(tiles * ith / nth * kTileRows, ctx_.n_out),
                          std::min(tiles * (ith + 1) / nth * kTileRows, ctx_.n_out)};
        follow(gate, slice, work.y, outputs, ws, ith, nth, [&] {
            seeddelta_compute_threaded(ctx_, work.x, 1, work.x_stride, work.y, work.y_stride, workspace, ith, nth,
                                       false, status);
        });
    }

    void prompt(const Work &work, Gate &gate, Workspace &workspace, int ith, int nth,
                ComputeStatus &status) const noexcept {
        Workspace::Impl &ws = workspace.impl();
        if (!work.reuse) {
            if (ith == 0) {
                ws.all_finite.store(true, std::memory_order_relaxed);
                ws.active.store(0, std::memory_order_relaxed);
                make_room(work.n_tokens, nth, ws);
            }
            ws.barrier(nth);
            mask_tokens(gate, work.x, work.n_tokens, work.x_stride / kFloat, ctx_.n_in, ws, ith, nth);
            ws.barrier(nth);
            if (ith == 0 && !gate.events()) {
                gate.advance(work.n_tokens);
            }
        }
        seeddelta_compute_threaded(ctx_, ws.masked.data, work.n_tokens, ctx_.n_in * kFloat, work.y, work.y_stride,
                                   workspace, ith, nth, work.reuse, status);
        if (ith == 0) {
            forget(gate, work);
        }
    }

    const seeddelta_ctx &ctx_;
    const GateSpec *gate_;
    std::unique_ptr<Operator> rows_;
    std::vector<int64_t> rows_with_; // [blocks]: rows that keep it; empty without a gate
};

} // namespace

std::unique_ptr<Operator> proc_operator(const seeddelta_ctx &ctx, const GateSpec *gate) {
    return std::make_unique<ProcOperator>(ctx, gate);
}

} // namespace seeddelta
