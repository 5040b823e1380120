// What this process has mapped.
#pragma once
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace seeddelta {

struct Mapping {
    uintptr_t begin = 0;
    uintptr_t end = 0;
    size_t offset = 0; // in its file
    bool readable = false;
    dev_t device = 0;
    ino_t inode = 0; // 0: of no file
};

// In ascending order. Throws ModelFileError where /proc is not to be had.
std::vector<Mapping> read_mappings();

// The mapping that an address is in, or null.
const Mapping *mapping_of(const std::vector<Mapping> &mappings, const void *address);

} // namespace seeddelta
