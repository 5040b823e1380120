// Residual scheme codebook_resid: a row is a sum of k atoms of a dictionary that all rows share, docs/reference/format.md.
// In seeddelta_ctx: dictionary [dictionary_size, n_in], residual_size = k, residual_index [n_out, k] the atoms'
// numbers, residual_vals_f16 [n_out, k] their amplitudes. The product needs p = dictionary * x once; a row is then what
// coo_dot makes of p.
#pragma once
#include <cstdint>

#include "format/coo.hpp"

namespace seeddelta {

// Scalar definition: p[t, m] for the atoms [begin, end) and all tokens. atom is scratch of n_in floats.
void dictionary_dot(const seeddelta_ctx &ctx, int64_t begin, int64_t end, const float *x, int64_t n_tokens,
                    int64_t x_stride, float *p, float *atom);
// out [n_in] += the residual of a row.
void codebook_add(const seeddelta_ctx &ctx, int64_t row, float *out);

} // namespace seeddelta
