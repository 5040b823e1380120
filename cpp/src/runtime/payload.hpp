// The arrays that a converted tensor is stored in.
#pragma once
#include <string_view>
#include <unordered_set>

#include "gguf/descriptions.hpp"
#include "seeddelta/make_weight.hpp"

namespace seeddelta {

// The arrays of a tensor, views of the mapped file. Names of the tensors that have them are added to `stored`. Throws
// ModelFileError for one that is missing, or not as the description has it.
WeightArrays payload_of(const Header &header, const TensorDescription &description,
                        std::unordered_set<std::string_view> &stored);

// Whether a tensor's name is one of a payload.
bool is_payload_name(std::string_view name);

} // namespace seeddelta
