// The way home of the graph hook: products and rows from the dense model. Plain code for a rare case.
#include <cmath>

#include "ggml_host/graph_hook.hpp"

namespace seeddelta {

// Eight partial sums, so that the compiler can use vectors without reordering a sum.
float dense_dot(const float *a, const float *b, int64_t n) {
    float partial[8] = {};
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        for (int64_t j = 0; j < 8; ++j) {
            partial[j] += a[i + j] * b[i + j];
        }
    }
    for (; i < n; ++i) {
        partial[0] += a[i] * b[i];
    }
    return ((partial[0] + partial[4]) + (partial[1] + partial[5])) +
           ((partial[2] + partial[6]) + (partial[3] + partial[7]));
}

int64_t dense_scratch(const seeddelta_ctx &ctx, WeightUse use, int64_t tokens) {
    const int64_t row = ctx.n_in * static_cast<int64_t>(sizeof(float));
    const int64_t lists = (ctx.n_experts + 1 + tokens) * static_cast<int64_t>(sizeof(int64_t));
    return use == WeightUse::experts ? lists + row : row;
}

// One row of the dense model, widened to out [n_in]. Returns false when it has NaN or infinity.
bool GraphHook::row_dense(const RegisteredWeight &weight, int64_t row, float *out) const {
    const int64_t n_in = weight.ctx->n_in;
    const uint8_t *source = weight.dense.data + row * weight.dense.row_bytes;
    if (weight.dense.type == kTypeF32) {
        std::memcpy(out, source, static_cast<size_t>(n_in) * sizeof(float));
    } else {
        abi_.to_float_of(weight.dense.type)(source, out, n_in);
    }
    bool finite = true;
    for (int64_t i = 0; i < n_in; ++i) {
        finite = finite && std::isfinite(out[i]);
    }
    return finite;
}

// The whole node on one thread.
void GraphHook::compute_dense(const void *dst, const RegisteredWeight &weight, WeightUse use, bool &finite) {
    if (use == WeightUse::product) {
        multiply_dense(weight, dst, 0, weight.ctx->n_out, finite);
        return;
    }
    if (use == WeightUse::experts) {
        multiply_experts_dense(weight, dst, 0, weight.ctx->n_out, finite);
        return;
    }
    const void *ids = abi_.src_of(dst, 1);
    for (int64_t i = 0; i < abi_.ne_of(dst, 1); ++i) {
        const auto *id = static_cast<const uint8_t *>(abi_.data_of(ids)) + i * abi_.nb_of(ids, 0);
        const int32_t row = GgmlAbi::read<int32_t>(id, 0);
        auto *out = reinterpret_cast<float *>(static_cast<uint8_t *>(abi_.data_of(dst)) + i * abi_.nb_of(dst, 1));
        if (row >= 0 && row < weight.ctx->n_out) {
            finite = row_dense(weight, row, out) && finite;
        }
    }
}

// A row is widened once and multiplied with every token.
void GraphHook::multiply_dense(const RegisteredWeight &weight, const void *dst, int64_t row_begin, int64_t row_end,
                               bool &finite) const {
    const int64_t n_in = weight.ctx->n_in;
    const void *x = abi_.src_of(dst, 1);
    const auto *x_data = static_cast<const uint8_t *>(abi_.data_of(x));
    auto *y_data = static_cast<uint8_t *>(abi_.data_of(dst));
    auto *widened = reinterpret_cast<float *>(thread_scratch(dense_scratch(*weight.ctx, WeightUse::product, 0)));
    for (int64_t row = row_begin; row < row_end; ++row) {
        row_dense(weight, row, widened);
        for (int64_t token = 0; token < tokens_of(x); ++token) {
            const auto *column = reinterpret_cast<const float *>(x_data + token * abi_.nb_of(x, 1));
            const float y = dense_dot(widened, column, n_in);
            finite = finite && std::isfinite(y);
            reinterpret_cast<float *>(y_data + token * abi_.nb_of(dst, 1))[row] = y;
        }
    }
}

} // namespace seeddelta
