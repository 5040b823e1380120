// Plain loops over channels that give the same bits for every instruction set.
#pragma once
#include <cstddef>

#include "simd/attention_kernels.hpp"

namespace seeddelta {

inline size_t size_of(int64_t n) {
    return static_cast<size_t>(n);
}

// Sums in kLanes parts, which the compiler makes vectors of. n: a multiple of them.
template <class Term>
float sum_of(int64_t n, const Term &term) {
    float lane[kLanes] = {};
    for (int64_t i = 0; i < n; i += kLanes) {
        for (int64_t l = 0; l < kLanes; ++l) {
            lane[l] += term(i + l);
        }
    }
    float sum = 0.0F;
    for (const float one : lane) {
        sum += one;
    }
    return sum;
}

inline float dot(const float *a, const float *b, int64_t n) {
    return sum_of(n, [&](int64_t i) { return a[i] * b[i]; });
}

} // namespace seeddelta
