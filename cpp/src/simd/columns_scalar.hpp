// The definition of the products of columns.hpp and of what chooses their inputs. Other units call these for the
// outputs that do not fill a register.
#pragma once
#include "simd/kernel_table.hpp"

namespace seeddelta {

void columns_f16_scalar(const ColumnWeight &w, const ActiveSet &s, int64_t out_begin, int64_t out_end, float *y);
void columns_f16_batch_scalar(const ColumnWeight &w, const float *x, int64_t n_tokens, int64_t x_stride,
                              int64_t out_begin, int64_t out_end, float *y, int64_t y_stride);
int64_t count_above_scalar(const int32_t *score, int64_t n, int32_t threshold);
void bitmaps_scalar(const float *x, int64_t n, float eps, uint64_t *pos, uint64_t *neg);
int64_t popcount_scalar(const uint64_t *words, int64_t n);

} // namespace seeddelta
