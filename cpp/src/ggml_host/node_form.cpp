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

} // namespace seeddelta
