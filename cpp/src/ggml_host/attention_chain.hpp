// Attention as llama.cpp builds it without flash attention: a product with the keys, [softcap], a softmax, and a
// product with the values. Found while the nodes of a graph pass by.
#pragma once
#include <vector>

#include "ggml_host/attention_operands.hpp"

namespace seeddelta {

class AttentionChain {
public:
    AttentionChain(const GgmlAbi &abi, const AttentionAbi &attention) : abi_(abi), attention_(attention) {}

    enum class Found : uint8_t {
        nothing,
        whole,   // the node is the last of a chain: an attention of one query
        unknown, // there is such a softmax, but what is round it is not known
    };
    // Every node of a graph, in order. Nothing but views lies between the nodes of a whole chain: what the last one
    // reads is there already when the first one is computed.
    Found see(void *node);

    // The following are of the last whole chain.
    void *scores() const { return whole_.front(); }
    const AttentionOperands &operands() const { return operands_; }
    // Nothing is computed between the products any more.
    void make_no_ops() const;

private:
    bool one_query(const void *product) const;
    bool complete();

    const GgmlAbi &abi_;
    AttentionAbi attention_;
    std::vector<void *> links_; // nodes from the product with the keys on
    bool weighed_ = false;      // the last of them is the softmax
    std::vector<void *> whole_; // the last chain that was whole
    AttentionOperands operands_;
};

} // namespace seeddelta
