// The header of the file that llama.cpp loads in place of a SeedΔ file.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "gguf/header.hpp"

namespace seeddelta {

struct StubTensor {
    std::string name;
    std::vector<int64_t> ne; // columns first
    uint32_t type = 0;
    size_t bytes = 0;
    size_t offset = 0; // in the stub file; set by stub_header
    // Where its data is: in a file, or in memory. Neither: it is a placeholder.
    const TensorInfo *source = nullptr;
    const uint8_t *data = nullptr;

    bool is_placeholder() const { return source == nullptr && data == nullptr; }
};

// Values of metadata that differ from those of a model, as bytes (the type's word first); empty: the key is left out.
using ChangedValues = std::map<std::string, std::string>;

// The bytes of a header with the metadata of `model`, but for the keys seeddelta.* and what is changed, and these
// tensors, in this order.
std::string stub_header(const Header &model, std::vector<StubTensor> &tensors, const ChangedValues &changed);

} // namespace seeddelta
