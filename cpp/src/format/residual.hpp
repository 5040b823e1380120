// The residual of a weight, whatever its scheme: scalar definitions. proc_sparse has a product of its own.
#pragma once
#include "format/block.hpp"
#include "format/codebook.hpp"
#include "format/coo.hpp"
#include "format/proc_sparse.hpp"

namespace seeddelta {

// The share of one output, before the row scale. p [dictionary_size] is dictionary * x, for codebook_resid.
static inline float residual_dot(const seeddelta_ctx &ctx, int64_t row, const float *x, const float *p) {
    switch (ctx.scheme) {
    case ResidualScheme::coo:
        return coo_dot(ctx, row, x);
    case ResidualScheme::block:
        return block_dot(ctx, row, x);
    case ResidualScheme::codebook_resid:
        return coo_dot(ctx, row, p);
    default:
        return 0.0F;
    }
}

// out [n_in] += the residual of a row.
static inline void residual_add(const seeddelta_ctx &ctx, int64_t row, float *out) {
    switch (ctx.scheme) {
    case ResidualScheme::coo:
        return coo_add(ctx, row, out);
    case ResidualScheme::block:
        return block_add(ctx, row, out);
    case ResidualScheme::codebook_resid:
        return codebook_add(ctx, row, out);
    default:
        return;
    }
}

} // namespace seeddelta
