// What a node of a graph works on: whether its operands are laid out as ours can read and write them, and where they
// are. MUL_MAT_ID has the experts that a router chose for every token; a MUL_MAT of several matrices has one for each
// head, as the compressed attention of DeepSeek.
#include "ggml_host/graph_hook.hpp"
#include "ggml_host/node_form.hpp"

namespace seeddelta {

bool GraphHook::fits(const void *node, WeightUse use, const Operator &op) const {
    const void *w = abi_.src_of(node, 0);
    const void *second = abi_.src_of(node, 1);
    const MatrixShape shape{abi_.ne_of(w, 1), abi_.ne_of(w, 0), abi_.ne_of(w, 2)};
    if (!op.fits(use) || shape != op.shape() || abi_.ne_of(w, 3) != 1 || !contiguous(w) || second == nullptr ||
        abi_.type_of(node) != kTypeF32) {
        return false;
    }
    for (int i = 0; i < 4; ++i) {
        if (abi_.ne_of(node, i) < 0 || abi_.ne_of(second, i) < 0) {
            return false;
        }
    }
    const bool empty = tokens_of(node) == 0;
    if (!empty && (abi_.data_of(node) == nullptr || abi_.data_of(second) == nullptr ||
                   abi_.nb_of(node, 1) < abi_.nb_of(node, 0) * abi_.ne_of(node, 0))) {
        return false;
    }
    return use == WeightUse::lookup ? fits_lookup(node, shape) : fits_product(node, use, shape);
}

bool GraphHook::fits_product(const void *node, WeightUse use, const MatrixShape &shape) const {
    const void *x = abi_.src_of(node, 1);
    if (abi_.type_of(x) != kTypeF32 || !uniform(abi_, node) || abi_.ne_of(x, 0) != shape.n_in ||
        abi_.ne_of(node, 0) != shape.n_out) {
        return false;
    }
    if (use == WeightUse::experts) {
        return fits_experts(node);
    }
    return uniform(abi_, x) && abi_.ne_of(x, 1) == abi_.ne_of(node, 1) && abi_.ne_of(x, 2) == abi_.ne_of(node, 2) &&
           abi_.ne_of(x, 3) == abi_.ne_of(node, 3);
}

bool GraphHook::fits_lookup(const void *node, const MatrixShape &shape) const {
    const void *ids = abi_.src_of(node, 1);
    return abi_.type_of(ids) == kTypeI32 && numbers(ids) && abi_.ne_of(ids, 1) == 1 && abi_.ne_of(ids, 2) == 1 &&
           abi_.ne_of(ids, 3) == 1 && abi_.ne_of(node, 0) == shape.n_in && abi_.ne_of(node, 1) == abi_.ne_of(ids, 0) &&
           tokens_of(node) == abi_.ne_of(ids, 0) && abi_.nb_of(node, 0) == 4 && abi_.nb_of(node, 1) % 4 == 0;
}

// The rest of what fits() looks at: the numbers of the experts, and how many slots share an input.
bool GraphHook::fits_experts(const void *node) const {
    const void *x = abi_.src_of(node, 1);
    const void *ids = abi_.src_of(node, 2);
    if (ids == nullptr) {
        return fits_heads(node);
    }
    return uniform(abi_, x) && abi_.type_of(ids) == kTypeI32 && abi_.ne_of(ids, 0) >= 0 && abi_.ne_of(ids, 1) >= 0 &&
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

Work GraphHook::work_of(const void *node, WeightUse use, bool reuse) const {
    const void *second = abi_.src_of(node, 1);
    Work work{.use = use,
              .reuse = reuse,
              .n_tokens = tokens_of(node),
              .y = static_cast<float *>(abi_.data_of(node)),
              .y_stride = abi_.nb_of(node, 1)};
    if (use == WeightUse::experts) {
        work.batch = batch_of(abi_, node);
    } else if (use == WeightUse::lookup) {
        work.rows = static_cast<const uint8_t *>(abi_.data_of(second));
        work.row_stride = abi_.nb_of(second, 0);
    } else {
        work.x = static_cast<const float *>(abi_.data_of(second));
        work.x_stride = abi_.nb_of(second, 1);
    }
    return work;
}

// A whole tensor: its rows one after another.
bool GraphHook::contiguous(const void *tensor) const {
    const auto nb = [&](int i) { return abi_.nb_of(tensor, i); };
    const int32_t type = abi_.type_of(tensor);
    return nb(0) == static_cast<int64_t>(abi_.type_size(type)) &&
           nb(1) == nb(0) * (abi_.ne_of(tensor, 0) / abi_.block_size(type)) && nb(2) == nb(1) * abi_.ne_of(tensor, 1) &&
           nb(3) == nb(2) * abi_.ne_of(tensor, 2);
}

// Whole int32 that are nowhere before the data.
bool GraphHook::numbers(const void *ids) const {
    return abi_.nb_of(ids, 0) >= 4 && abi_.nb_of(ids, 0) % 4 == 0 && abi_.nb_of(ids, 1) >= 0 &&
           abi_.nb_of(ids, 1) % 4 == 0;
}

} // namespace seeddelta
