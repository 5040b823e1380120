#include "simd/columns_scalar.hpp"

#include <algorithm>
#include <bit>

#include "format/float16.hpp"

namespace seeddelta {

void columns_f16_scalar(const ColumnWeight &w, const ActiveSet &s, int64_t out_begin, int64_t out_end, float *y) {
    for (int64_t o = out_begin; o < out_end; ++o) {
        float sum = 0.0F;
        for (int64_t i = 0; i < s.n; ++i) {
            sum += s.value[i] * half_to_float(w.f16[s.index[i] * w.n_out + o]);
        }
        y[o] = sum;
    }
}

// An input of 0 adds a zero to a sum that is never -0: the bits are those of leaving it out.
void columns_f16_batch_scalar(const ColumnWeight &w, const float *x, int64_t n_tokens, int64_t x_stride,
                              int64_t out_begin, int64_t out_end, float *y, int64_t y_stride) {
    for (int64_t t = 0; t < n_tokens; ++t) {
        for (int64_t o = out_begin; o < out_end; ++o) {
            float sum = 0.0F;
            for (int64_t j = 0; j < w.n_in; ++j) {
                sum += x[t * x_stride + j] * half_to_float(w.f16[j * w.n_out + o]);
            }
            y[t * y_stride + o] = sum;
        }
    }
}

int64_t count_above_scalar(const int32_t *score, int64_t n, int32_t threshold) {
    int64_t count = 0;
    for (int64_t i = 0; i < n; ++i) {
        count += score[i] > threshold ? 1 : 0;
    }
    return count;
}

void bitmaps_scalar(const float *x, int64_t n, float eps, uint64_t *pos, uint64_t *neg) {
    for (int64_t start = 0; start < n; start += 64) {
        uint64_t p = 0;
        uint64_t m = 0;
        for (int64_t i = start; i < std::min(start + 64, n); ++i) {
            p |= static_cast<uint64_t>(x[i] > eps ? 1 : 0) << (i - start);
            m |= static_cast<uint64_t>(x[i] < -eps ? 1 : 0) << (i - start);
        }
        pos[start / 64] = p;
        neg[start / 64] = m;
    }
}

int64_t popcount_scalar(const uint64_t *words, int64_t n) {
    int64_t count = 0;
    for (int64_t i = 0; i < n; ++i) {
        count += std::popcount(words[i]);
    }
    return count;
}

} // namespace seeddelta
