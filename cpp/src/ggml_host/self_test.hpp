// The last step of the probe: a small graph of the loaded ggml, rewritten by our hook and computed. That the fields lie
// where they are thought to lie does not say that a rewritten node is computed as it should be.
#pragma once
#include "ggml_host/attention_abi.hpp"

namespace seeddelta {

// Names of the ggml functions that it needs, with those of ggml_required_symbols. Where a library has no
// ggml_graph_compute_with_ctx yet (the CPU's functions are loaded later) nothing is computed.
const std::vector<std::string> &self_test_symbols();

// Every form of product and the look-up, or the attention of one token, beside ggml's own: how many were compared.
// Throw AbiProbeError for one that differs.
int test_products(const std::map<std::string, uintptr_t> &symbols, const GgmlAbi &abi);
int test_attention(const std::map<std::string, uintptr_t> &symbols, const GgmlAbi &abi, const AttentionAbi &attention);

} // namespace seeddelta
