#include "ggml_host/attention_chain.hpp"

#include <cstring>
#include <utility>

#include "ggml_host/node_form.hpp"

namespace seeddelta {

bool AttentionChain::one_query(const void *product) const {
    const void *with = abi_.src_of(product, 1);
    return with != nullptr && abi_.ne_of(with, 1) == 1;
}

AttentionChain::Found AttentionChain::see(void *node) {
    const int32_t op = abi_.op_of(node);
    if (attention_.is_view(op) || op == abi_.op_none) {
        return Found::nothing;
    }
    const void *first = abi_.src_of(node, 0);
    const bool follows = !links_.empty() && first == links_.back();
    const bool weighed = std::exchange(weighed_, false);
    if (weighed && op == abi_.op_mul_mat && abi_.src_of(node, 1) == links_.back() &&
        is_plain(abi_, node, abi_.form_mul_mat)) {
        operands_.v = first;
        whole_ = std::exchange(links_, {});
        return Found::whole;
    }
    const Found before = weighed ? Found::unknown : Found::nothing; // no product with values after it
    if (op == abi_.op_mul_mat && one_query(node)) {
        links_.assign(1, node);
        return before;
    }
    if (op == attention_.op_soft_max && abi_.src_of(node, 1) != nullptr && abi_.ne_of(node, 1) == 1) {
        links_.push_back(node);
        weighed_ = follows && complete();
        if (weighed_) {
            return Found::nothing;
        }
        links_.clear();
        return Found::unknown;
    }
    if (follows && !weighed && (op == attention_.op_scale || op == attention_.op_unary)) {
        links_.push_back(node);
    } else {
        links_.clear();
    }
    return before;
}

// From the product with the keys to the softmax: whether every step is known. Takes down what they say.
bool AttentionChain::complete() {
    const void *scores = links_.front();
    const void *weights = links_.back();
    if (!is_plain(abi_, scores, abi_.form_mul_mat) || !is_plain(abi_, weights, attention_.form_soft_max)) {
        return false;
    }
    operands_ = {};
    operands_.k = abi_.src_of(scores, 0);
    operands_.q = abi_.src_of(scores, 1);
    operands_.mask = abi_.src_of(weights, 1);
    operands_.sinks = abi_.src_of(weights, 2);
    operands_.v_by_channel = true;
    operands_.scale = GgmlAbi::read<float>(weights, abi_.params);
    operands_.max_bias = GgmlAbi::read<float>(weights, abi_.params + 4);
    if (links_.size() == 2) {
        return true;
    }
    // scale * outer * tanh(inner * score)
    if (links_.size() != 5 || abi_.op_of(links_[1]) != attention_.op_scale ||
        abi_.op_of(links_[2]) != attention_.op_unary ||
        GgmlAbi::read<int32_t>(links_[2], abi_.params) != attention_.unary_tanh ||
        abi_.op_of(links_[3]) != attention_.op_scale || !is_plain(abi_, links_[1], attention_.form_scale) ||
        !is_plain(abi_, links_[2], attention_.form_tanh) || !is_plain(abi_, links_[3], attention_.form_scale)) {
        return false;
    }
    const auto factor = [&](const void *node) { return GgmlAbi::read<float>(node, abi_.params); };
    const auto offset = [&](const void *node) { return GgmlAbi::read<float>(node, abi_.params + 4); };
    operands_.softcap = operands_.scale * factor(links_[3]);
    operands_.scale = factor(links_[1]) * operands_.softcap;
    return operands_.softcap != 0.0F && offset(links_[1]) == 0.0F && offset(links_[3]) == 0.0F;
}

void AttentionChain::make_no_ops() const {
    for (size_t i = 1; i < whole_.size(); ++i) {
        std::memcpy(static_cast<uint8_t *>(whole_[i]) + abi_.op, &abi_.op_none, sizeof(abi_.op_none));
    }
}

} // namespace seeddelta
