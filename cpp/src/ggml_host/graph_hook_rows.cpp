// GET_ROWS of a registered weight: rows of the embedding by token number.
#include <cmath>

#include "ggml_host/graph_hook.hpp"

namespace seeddelta {

bool GraphHook::fits_lookup(const void *node, const seeddelta_ctx &ctx) const {
    const void *ids = abi_.src_of(node, 1);
    return abi_.type_of(ids) == kTypeI32 && numbers(ids) && abi_.ne_of(ids, 1) == 1 && abi_.ne_of(ids, 2) == 1 &&
           abi_.ne_of(ids, 3) == 1 && abi_.ne_of(node, 0) == ctx.n_in && abi_.ne_of(node, 1) == abi_.ne_of(ids, 0) &&
           tokens_of(node) == abi_.ne_of(ids, 0) && abi_.nb_of(node, 0) == 4 && abi_.nb_of(node, 1) % 4 == 0;
}

// A thread does its share of the rows.
void GraphHook::run_lookup(void *dst, int ith, int nth, const RegisteredWeight &weight, bool dense) {
    const seeddelta_ctx &ctx = *weight.ctx;
    const void *ids = abi_.src_of(dst, 1);
    const int64_t n = abi_.ne_of(ids, 0);
    const auto *id_data = static_cast<const uint8_t *>(abi_.data_of(ids));
    auto *data = static_cast<uint8_t *>(abi_.data_of(dst));
    for (int64_t i = n * ith / nth; i < n * (ith + 1) / nth; ++i) {
        const int32_t row = GgmlAbi::read<int32_t>(id_data, static_cast<size_t>(i * abi_.nb_of(ids, 0)));
        auto *out = reinterpret_cast<float *>(data + i * abi_.nb_of(dst, 1));
        if (row < 0 || row >= ctx.n_out) {
            std::memset(out, 0, static_cast<size_t>(ctx.n_in) * sizeof(float));
            status_.bad_index.store(true, std::memory_order_relaxed);
            continue;
        }
        if (dense) {
            if (!row_dense(weight, row, out)) {
                dense_finite_.store(false, std::memory_order_relaxed);
            }
            continue;
        }
        seeddelta_dequantize(ctx, row, row + 1, out);
        bool finite = true;
        for (int64_t column = 0; column < ctx.n_in; ++column) {
            finite = finite && std::isfinite(out[column]);
        }
        if (!finite) {
            status_.nonfinite_output.store(true, std::memory_order_relaxed);
        }
    }
}

} // namespace seeddelta
