#pragma once
#include <cstdint>

namespace seeddelta {

// What is computed before the rows of a product, by thread ith of nth.
struct PrepareWork {
    const float *x = nullptr; // [n_tokens, x_stride]
    int64_t n_tokens = 0;
    int64_t x_stride = 0;
    float *y = nullptr; // [n_tokens, y_stride]
    int64_t y_stride = 0;
    float *p = nullptr; // [n_tokens, dictionary_size]
    int ith = 0;
    int nth = 1;
};

} // namespace seeddelta
