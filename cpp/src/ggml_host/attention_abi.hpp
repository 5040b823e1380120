// What taking over attention needs of ggml beyond GgmlAbi. Probed only when it is asked for, so that models run where
// it cannot be learned.
#pragma once
#include "ggml_host/ggml_abi.hpp"

namespace seeddelta {

inline constexpr int32_t kTypeQ4_0 = 2;
inline constexpr int32_t kTypeQ8_0 = 8;
inline constexpr int32_t kTypeI64 = 27;

struct AttentionAbi {
    int32_t op_flash_attn_ext = 0; // (q, k, v, mask, sinks); parameters scale, max_bias, softcap
    // of attention without flash attention, beside MUL_MAT
    int32_t op_soft_max = 0; // (scores, mask, sinks); parameters scale, max_bias
    int32_t op_scale = 0;    // parameters factor, offset
    int32_t op_unary = 0;    // parameter: which one
    int32_t unary_tanh = 0;
    int32_t op_set_rows = 0;   // rows by number; a view of the tensor that is written
    size_t set_rows_index = 0; // which source has the numbers
    // operations that give a tensor another shape and write nothing
    int32_t op_view = 0;
    int32_t op_reshape = 0;
    int32_t op_permute = 0;
    int32_t op_transpose = 0;
    NodeForm form_flash, form_soft_max, form_scale, form_tanh;

    bool is_view(int32_t op) const {
        return op == op_view || op == op_reshape || op == op_permute || op == op_transpose;
    }
};

// Throws AbiProbeError.
AttentionAbi probe_attention(const std::map<std::string, uintptr_t> &symbols, const GgmlAbi &abi);

// Names of the ggml functions that it needs, with those of ggml_required_symbols.
const std::vector<std::string> &attention_required_symbols();

} // namespace seeddelta
