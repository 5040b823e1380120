// What a node of one operation looks like where we do not understand it. A release that adds a parameter, a hint or a
// source writes there, and the node is refused.
#pragma once
#include <string>

#include "ggml_host/ggml_abi.hpp"
#include "seeddelta/compute.hpp"

namespace seeddelta {

// Empty when the node is as the form has it; else what differs, for a message.
std::string difference(const GgmlAbi &abi, const void *node, const NodeForm &form);

// The same question, without words.
bool is_plain(const GgmlAbi &abi, const void *node, const NodeForm &form);

// One stride leads from each column of float32 to the next.
bool uniform(const GgmlAbi &abi, const void *tensor);

// The operands of a product of several matrices: MUL_MAT_ID, or MUL_MAT with one for each head.
ExpertBatch batch_of(const GgmlAbi &abi, const void *node);

} // namespace seeddelta
