// What an attention of llama.cpp's graph works on, however the graph has it: one FLASH_ATTN_EXT node, or two products
// with a softmax between them (attention_chain.hpp).
#pragma once
#include "attention/key_pack.hpp"
#include "ggml_host/attention_abi.hpp"

namespace seeddelta {

struct AttentionOperands {
    // tensors of ggml
    const void *q = nullptr;     // float32 [dim_k, tokens, heads, streams]
    const void *k = nullptr;     // [dim_k, positions, KV heads, streams]
    const void *v = nullptr;     // [dim_v, positions, KV heads, streams]; by channel [positions, dim_v, KV heads]
    const void *mask = nullptr;  // [positions, tokens, 1, streams], float16 or float32; may be null
    const void *sinks = nullptr; // float32 [heads]; may be null
    bool v_by_channel = false;
    float scale = 1.0F, max_bias = 0.0F, softcap = 0.0F; // AttentionProblem's
};

// Why we do not compute it; null when we do.
const char *misfit(const GgmlAbi &abi, const AttentionOperands &operands);

// The problem, but for where the result goes. Reads where the tensors' data are now.
AttentionProblem problem_of(const GgmlAbi &abi, const AttentionOperands &operands);

} // namespace seeddelta
