#include "ggml_host/node_form.hpp"

namespace seeddelta {

static constexpr int32_t kHints[] = {0, 10}; // GGML_PREC_DEFAULT, GGML_PREC_F32: our sums are float32 in any case

std::string difference(const GgmlAbi &abi, const void *node, const NodeForm &form) {
    const auto *bytes = static_cast<const uint8_t *>(node);
    const size_t begin = abi.params_begin();
    for (size_t i = 0; i < form.bytes.size(); ++i) {
        if (form.known[i] == 0 && bytes[begin + i] != form.bytes[i]) {
            return "has parameters that are not known (byte " + std::to_string(i) + ")";
        }
    }
    if (form.hint != 0) {
        const auto hint = GgmlAbi::read<int32_t>(node, form.hint);
        if (hint != kHints[0] && hint != kHints[1]) {
            return "asks for an unknown precision (" + std::to_string(hint) + ")";
        }
    }
    for (int i = form.sources; i < abi.n_src(); ++i) {
        if (abi.src_of(node, i) != nullptr) {
            return "has a source that is not known (number " + std::to_string(i) + ")";
        }
    }
    for (size_t o = abi.view_src; o < abi.data; ++o) {
        if (bytes[o] != 0) {
            return "is a view of another tensor";
        }
    }
    return {};
}

bool is_plain(const GgmlAbi &abi, const void *node, const NodeForm &form) {
    return difference(abi, node, form).empty(); // an empty text allocates nothing
}

bool uniform(const GgmlAbi &abi, const void *tensor) {
    const auto ne = [&](int i) { return abi.ne_of(tensor, i); };
    const auto nb = [&](int i) { return abi.nb_of(tensor, i); };
    return nb(0) == 4 && nb(1) % 4 == 0 && nb(1) >= 0 && (ne(2) == 1 || nb(2) == nb(1) * ne(1)) &&
           (ne(3) == 1 || nb(3) == nb(2) * ne(2));
}

ExpertBatch batch_of(const GgmlAbi &abi, const void *node) {
    const void *x = abi.src_of(node, 1);
    const void *ids = abi.src_of(node, 2);
    if (ids == nullptr) {
        return {.n_tokens = abi.ne_of(x, 2) * abi.ne_of(x, 3),
                .used = abi.ne_of(x, 1),
                .x = static_cast<const float *>(abi.data_of(x)),
                .x_stride = abi.nb_of(x, 1),
                .y = static_cast<float *>(abi.data_of(node)),
                .y_stride = abi.nb_of(node, 1),
                .heads = abi.ne_of(x, 2),
                .head_stride = abi.nb_of(x, 2),
                .stream_stride = abi.nb_of(x, 3)};
    }
    return {.n_tokens = abi.ne_of(ids, 1),
            .used = abi.ne_of(ids, 0),
            .inputs = abi.ne_of(x, 1),
            .ids = static_cast<const uint8_t *>(abi.data_of(ids)),
            .id_stride = abi.nb_of(ids, 0),
            .token_stride = abi.nb_of(ids, 1),
            .x = static_cast<const float *>(abi.data_of(x)),
            .x_stride = abi.nb_of(x, 1),
            .y = static_cast<float *>(abi.data_of(node)),
            .y_stride = abi.nb_of(node, 1)};
}

} // namespace seeddelta
