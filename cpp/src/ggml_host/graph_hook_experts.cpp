// MUL_MAT_ID of a registered weight: the experts that a router chose for every token. MUL_MAT of one with several
// matrices: one for each head, as the compressed attention of DeepSeek has them.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "ggml_host/graph_hook.hpp"

namespace seeddelta {

// The rest of what fits() looks at: the numbers of the experts, and how many slots share an input.
bool GraphHook::fits_experts(const void *node) const {
    const void *x = abi_.src_of(node, 1);
    const void *ids = abi_.src_of(node, 2);
    if (ids == nullptr) {
        return fits_heads(node);
    }
    return uniform(x) && abi_.type_of(ids) == kTypeI32 && abi_.ne_of(ids, 0) >= 0 && abi_.ne_of(ids, 1) >= 0 &&
           numbers(ids) && (abi_.data_of(ids) != nullptr || tokens_of(node) == 0) && abi_.ne_of(ids, 2) == 1 &&
           abi_.ne_of(ids, 3) == 1 && abi_.ne_of(x, 1) > 0 && abi_.ne_of(ids, 0) % abi_.ne_of(x, 1) == 0 &&
           abi_.ne_of(x, 2) == abi_.ne_of(ids, 1) && abi_.ne_of(x, 3) == 1 &&
           abi_.ne_of(node, 1) == abi_.ne_of(ids, 0) && abi_.ne_of(node, 2) == abi_.ne_of(ids, 1) &&
           abi_.ne_of(node, 3) == 1;
}

// x [n_in, tokens, heads, streams] may be any view whose columns are whole.
bool GraphHook::fits_heads(const void *node) const {
    const void *x = abi_.src_of(node, 1);
    bool fits = abi_.nb_of(x, 0) == 4 && abi_.ne_of(x, 2) == abi_.ne_of(abi_.src_of(node, 0), 2);
    for (int i = 1; i < 4; ++i) {
        fits = fits && abi_.nb_of(x, i) % 4 == 0 && abi_.ne_of(x, i) > 0 && abi_.ne_of(x, i) == abi_.ne_of(node, i);
    }
    return fits;
}

ExpertBatch GraphHook::batch_of(const void *node) const {
    const void *x = abi_.src_of(node, 1);
    const void *ids = abi_.src_of(node, 2);
    if (ids == nullptr) {
        return {.n_tokens = abi_.ne_of(x, 2) * abi_.ne_of(x, 3),
                .used = abi_.ne_of(x, 1),
                .x = static_cast<const float *>(abi_.data_of(x)),
                .x_stride = abi_.nb_of(x, 1),
                .y = static_cast<float *>(abi_.data_of(node)),
                .y_stride = abi_.nb_of(node, 1),
                .heads = abi_.ne_of(x, 2),
                .head_stride = abi_.nb_of(x, 2),
                .stream_stride = abi_.nb_of(x, 3)};
    }
    return {.n_tokens = abi_.ne_of(ids, 1),
            .used = abi_.ne_of(ids, 0),
            .inputs = abi_.ne_of(x, 1),
            .ids = static_cast<const uint8_t *>(abi_.data_of(ids)),
            .id_stride = abi_.nb_of(ids, 0),
            .token_stride = abi_.nb_of(ids, 1),
            .x = static_cast<const float *>(abi_.data_of(x)),
            .x_stride = abi_.nb_of(x, 1),
            .y = static_cast<float *>(abi_.data_of(node)),
            .y_stride = abi_.nb_of(node, 1)};
}

void GraphHook::run_experts(void *dst, int ith, int nth, const ServedWeight::Node &node, bool dense, bool reuse) {
    const RegisteredWeight &weight = *node.served->weight;
    const int64_t n_out = weight.ctx->n_out;
    if (!dense) {
        seeddelta_compute_experts(*weight.ctx, batch_of(dst), workspace_, ith, nth, reuse, status_);
        return;
    }
    bool finite = true;
    multiply_experts_dense(weight, dst, n_out * ith / nth, n_out * (ith + 1) / nth, finite);
    if (!finite) {
        dense_finite_.store(false, std::memory_order_relaxed);
    }
}

// Rows [row_begin, row_end) of every expert. A row is widened once and multiplied with every token that chose its
// expert.
void GraphHook::multiply_experts_dense(const RegisteredWeight &weight, const void *dst, int64_t row_begin,
                                       int64_t row_end, bool &finite) {
    const seeddelta_ctx &ctx = *weight.ctx;
    const ExpertBatch b = batch_of(dst);
    auto *end = reinterpret_cast<int64_t *>(thread_scratch(dense_scratch(ctx, WeightUse::experts, b.pairs())));
    int64_t *pairs = end + ctx.n_experts + 1; // by expert: those of one end where the next one's begin
    auto *widened = reinterpret_cast<float *>(pairs + b.pairs());
    std::fill_n(end, ctx.n_experts + 1, int64_t{0});
    const auto known = [&](int64_t expert) { return expert >= 0 && expert < ctx.n_experts; };
    for (int64_t pair = 0; pair < b.pairs(); ++pair) {
        const int64_t expert = b.expert_of(pair);
        if (known(expert)) {
            ++end[expert + 1];
            continue;
        }
        status_.bad_index.store(true, std::memory_order_relaxed);
        std::memset(static_cast<uint8_t *>(abi_.data_of(dst)) + pair * b.y_stride + row_begin * 4, 0,
                    static_cast<size_t>(row_end - row_begin) * sizeof(float));
    }
    std::partial_sum(end, end + ctx.n_experts + 1, end);
    for (int64_t pair = 0; pair < b.pairs(); ++pair) {
        const int64_t expert = b.expert_of(pair);
        if (known(expert)) {
            pairs[end[expert]++] = pair;
        }
    }
    for (int64_t expert = 0, i = 0; expert < ctx.n_experts; i = end[expert++]) {
        for (int64_t row = row_begin; row < row_end && i < end[expert]; ++row) {
            row_dense(weight, expert * ctx.n_out + row, widened);
            for (int64_t at = i; at < end[expert]; ++at) {
                const int64_t pair = pairs[at];
                const float y = dense_dot(widened, b.input_of(pair), ctx.n_in);
                finite = finite && std::isfinite(y);
                reinterpret_cast<float *>(reinterpret_cast<uint8_t *>(b.y) + pair * b.y_stride)[row] = y;
            }
        }
    }
}

} // namespace seeddelta
