// The arrays that a converted tensor is stored in.
#pragma once
#include <string_view>
#include <vector>

#include "gguf/descriptions.hpp"
#include "seeddelta/make_weight.hpp"

namespace seeddelta {

// The arrays of a tensor, views of the mapped file, and the tensors that they are stored as.
struct Payload {
    WeightArrays arrays;
    std::vector<const TensorInfo *> stored;
};

// Throws ModelFileError for an array that is missing, or not as the description has it.
Payload payload_of(const Header &header, const TensorDescription &description);

// Whether a tensor's name is one of a payload.
bool is_payload_name(std::string_view name);

} // namespace seeddelta
