// What a node of one operation looks like where we do not understand it. A release that adds a parameter, a hint or a
// source writes there, and the node is refused.
#pragma once
#include <string>

#include "ggml_host/ggml_abi.hpp"

namespace seeddelta {

// Empty when the node is as the form has it; else what differs, for a message.
std::string difference(const GgmlAbi &abi, const void *node, const NodeForm &form);

// The same question, without words.
bool is_plain(const GgmlAbi &abi, const void *node, const NodeForm &form);

} // namespace seeddelta
