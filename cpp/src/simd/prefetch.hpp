// Asks the memory for codes before they are read.
#pragma once
#include <cstdint>

namespace seeddelta {

inline constexpr int64_t kLineBytes = 64;
inline constexpr int64_t kNearBytes = 16384; // what the first cache holds beside the activations

// Asks for the first of `bytes` bytes, into the second cache.
static inline void prefetch_near(const uint8_t *codes, int64_t bytes) {
    for (int64_t at = 0; at < bytes && at < kNearBytes; at += kLineBytes) {
        __builtin_prefetch(codes + at, 0, 2);
    }
}

} // namespace seeddelta
