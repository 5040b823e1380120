// Sums of products of float32: kSumLanes partial sums, whose order is part of the format.
#pragma once
#include <cstdint>

namespace seeddelta {

inline constexpr int kSumLanes = 16;

// Adds the partial sums in the format's order.
static inline float reduce_sums(float partial[kSumLanes]) {
    for (int half = kSumLanes / 2; half > 0; half /= 2) {
        for (int i = 0; i < half; ++i) {
            partial[i] += partial[i + half];
        }
    }
    return partial[0];
}

} // namespace seeddelta
