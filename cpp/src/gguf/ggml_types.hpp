// The tensor types of GGUF files, by number.
#pragma once
#include <cstdint>

namespace seeddelta {

struct GgmlType {
    uint32_t number;
    const char *name;
    int64_t block; // values a block
    int64_t bytes; // of a block
};

// Null for a number that this release does not know.
const GgmlType *ggml_type(uint32_t number);

} // namespace seeddelta
