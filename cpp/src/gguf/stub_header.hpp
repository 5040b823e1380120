// The header of the file that llama.cpp loads in place of a SeedΔ file.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "gguf/header.hpp"

namespace seeddelta {

struct StubTensor {
    std::string name;
    std::vector<int64_t> ne; // columns first
    uint32_t type = 0;
    size_t bytes = 0;
    size_t offset = 0;                  // in the stub file; set by stub_header
    const TensorInfo *source = nullptr; // null: a placeholder
};

// The bytes of a header with the metadata of `model`, but for the keys seeddelta.*, and these tensors, in this order.
std::string stub_header(const Header &model, std::vector<StubTensor> &tensors);

} // namespace seeddelta
