// Products of a mixture of experts: tokens are sorted by expert, and each expert is decoded once for all of its tokens.
#include <algorithm>
#include <cstring>

#include "linear/workspace.hpp"

namespace seeddelta {

void Workspace::reserve(const ExpertBatch &batch, const seeddelta_ctx &ctx) {
    reserve(batch.pairs(), ctx);
    impl_->pairs.reserve(batch.pairs());
    impl_->begin.reserve(ctx.n_experts + 1);
    impl_->chosen.reserve(ctx.n_experts);
    if (ctx.scheme != ResidualScheme::none) {
        impl_->x.reserve(batch.pairs() * ctx.n_in);
    }
}

int64_t Workspace::experts() const {
    return impl_->n_chosen;
}

static float *output_of(const ExpertBatch &b, int64_t pair) {
    return reinterpret_cast<float *>(reinterpret_cast<uint8_t *>(b.y) + pair * b.y_stride);
}

// Counting sort of the pairs by expert. Those of no expert are left out.
static void sort_pairs(const seeddelta_ctx &ctx, const ExpertBatch &b, Workspace::Impl &w, ComputeStatus &status) {
    int64_t *begin = w.begin.data;
    std::fill_n(begin, ctx.n_experts + 1, int64_t{0});
    for (int64_t pair = 0; pair < b.pairs(); ++pair) {
        const int64_t expert = b.expert_of(pair);
        if (expert < 0 || expert >= ctx.n_experts) {
            status.bad_index.store(true, std::memory_order_relaxed);
            std::memset(output_of(b, pair), 0, static_cast<size_t>(ctx.n_out) * sizeof(float));
        } else {
            ++begin[expert];
        }
    }
    w.n_chosen = 0;
    int64_t end = 0;
    for (int64_t expert = 0; expert < ctx.n_experts; ++expert) {
        if (begin[expert] > 0) {
            w.chosen.data[w.n_chosen++] = expert;
        }
        end += begin[expert];
        begin[expert] = end;
    }
    begin[ctx.n_experts] = end;
    for (int64_t pair = b.pairs() - 1; pair >= 0; --pair) { // backwards: every begin moves to its place
        const int64_t expert = b.expert_of(pair);
        if (expert >= 0 && expert < ctx.n_experts) {
            w.pairs.data[--begin[expert]] = pair;
        }
    }
}

static void prepare_pairs(const seeddelta_ctx &ctx, const ExpertBatch &b, Workspace::Impl &w, int ith, int nth) {
    const int64_t n = w.begin.data[ctx.n_experts];
    bool all_finite = true;
    auto *rotated = reinterpret_cast<float *>(thread_scratch(ctx.n_in * static_cast<int64_t>(sizeof(float))));
    int64_t expert = 0;
    for (int64_t i = n * ith / nth; i < n * (ith + 1) / nth; ++i) {
        while (w.begin.data[expert + 1] <= i) {
            ++expert;
        }
        const float *x = b.input_of(w.pairs.data[i]);
        all_finite &= prepare_token(ctx.expert(expert), x, i, w, rotated);
        if (ctx.scheme != ResidualScheme::none) {
            std::memcpy(w.x.data + i * ctx.n_in, x, static_cast<size_t>(ctx.n_in) * sizeof(float));
        }
    }
    if (!all_finite) {
        w.all_finite.store(false, std::memory_order_relaxed);
    }
}

void seeddelta_compute_experts(const seeddelta_ctx &ctx, const ExpertBatch &batch, Workspace &workspace, int ith,
                               int nth, bool reuse_activations, ComputeStatus &status) {
    Workspace::Impl &w = workspace.impl();
    if (!reuse_activations) {
        if (ith == 0) {
            workspace.reserve(batch, ctx);
            w.all_finite.store(true, std::memory_order_relaxed);
            sort_pairs(ctx, batch, w, status);
        }
        w.barrier(nth);
        prepare_pairs(ctx, batch, w, ith, nth);
        w.barrier(nth);
    }
    if (!w.all_finite.load(std::memory_order_relaxed)) {
        status.nonfinite_input.store(true, std::memory_order_relaxed);
    }
    const int64_t stride = padded(ctx.n_in);
    const int64_t groups = stride / kGroup;
    const int64_t tiles = ctx.n_tiles();
    int64_t most = 0;
    for (int64_t i = 0; i < w.n_chosen; ++i) {
        const int64_t expert = w.chosen.data[i];
        most = std::max(most, w.begin.data[expert + 1] - w.begin.data[expert]);
    }
    uint8_t *panel = thread_scratch(panel_bytes(ctx, most));
    for (int64_t i = 0; i < w.n_chosen; ++i) {
        const int64_t expert = w.chosen.data[i];
        const int64_t first = w.begin.data[expert];
        const Activations a{w.begin.data[expert + 1] - first,
                            ctx.n_in,
                            stride,
                            w.q.data + first * stride,
                            w.scale.data + first * groups,
                            w.bias.data + first * groups,
                            w.x.data + (w.x.data == nullptr ? 0 : first * ctx.n_in),
                            ctx.n_in,
                            nullptr,
                            w.pairs.data + first};
        if (!kernels().linear.compute(ctx.expert(expert), a, tiles * ith / nth, tiles * (ith + 1) / nth, panel, batch.y,
                                      batch.y_stride / static_cast<int64_t>(sizeof(float)))) {
            status.nonfinite_output.store(true, std::memory_order_relaxed);
        }
    }
}

} // namespace seeddelta
