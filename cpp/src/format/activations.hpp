// Rounding of activations to int8, in groups of kGroup columns or several of them together: docs/reference/format.md,
// "What is computed".
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "seeddelta/weight.hpp"

namespace seeddelta {

// Added to every value of a base so that the products of unsigned and signed bytes can be used: v + 64 is in 1 .. 127.
inline constexpr int kValueBias = 64;

// Of eight neighboring columns 0, 1, 4 and 5 are a dot group, and 2, 3, 6 and 7. Values of a base plus kValueBias are
// 1 to 127; the sum of a dot group's products with them fits 16 bits when neither the positive nor the negative
// activations of it come to more than 258. They do not when they come to 256 before rounding, so a scale is at least
// the 512th part of this: the largest of twice such a sum, |a| + |b| + |c| + |d| + |a + b + c + d|. `n` is a multiple
// of eight.
static inline float largest_four(const float *all, int64_t n) {
    float largest = 0.0F;
    for (int64_t i = 0; i < n; i += i % 4 == 0 ? 2 : 6) {
        const float *x = all + i;
        const float sum = (x[0] + x[4]) + (x[1] + x[5]);
        const float magnitudes = (std::fabs(x[0]) + std::fabs(x[4])) + (std::fabs(x[1]) + std::fabs(x[5]));
        largest = std::max(largest, magnitudes + std::fabs(sum));
    }
    return largest;
}

// What largest_four is multiplied by to be compared with the largest magnitude, which is 127 after rounding.
inline constexpr float kFourShare = 127.0F / 512.0F;

} // namespace seeddelta
