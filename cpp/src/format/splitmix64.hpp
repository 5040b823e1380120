// SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014), addressed by index.
#pragma once
#include <cstdint>

namespace seeddelta {

inline constexpr uint64_t kGoldenGamma = 0x9E3779B97F4A7C15ULL;

static inline uint64_t splitmix64_mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
}

// The n-th output (from 0) of the generator started at `key`.
static inline uint64_t splitmix64_at(uint64_t key, uint64_t n) {
    return splitmix64_mix(key + (n + 1) * kGoldenGamma);
}

} // namespace seeddelta
