#include "format/codebook.hpp"

namespace seeddelta {

void dictionary_dot(const seeddelta_ctx &ctx, int64_t begin, int64_t end, const float *x, int64_t n_tokens,
                    int64_t x_stride, float *p, float *atom) {
    for (int64_t m = begin; m < end; ++m) {
        for (int64_t i = 0; i < ctx.n_in; ++i) {
            atom[i] = half_to_float(ctx.dictionary[m * ctx.n_in + i]);
        }
        for (int64_t token = 0; token < n_tokens; ++token) {
            float partial[kCooLanes] = {};
            for (int64_t i = 0; i < ctx.n_in; ++i) {
                partial[i % kCooLanes] += atom[i] * x[token * x_stride + i];
            }
            p[token * ctx.dictionary_size + m] = coo_reduce(partial);
        }
    }
}

void codebook_add(const seeddelta_ctx &ctx, int64_t row, float *out) {
    for (int64_t entry = row * ctx.residual_size; entry < (row + 1) * ctx.residual_size; ++entry) {
        const float amplitude = half_to_float(ctx.residual_vals_f16[entry]);
        const uint16_t *atom = ctx.dictionary + ctx.residual_index[entry] * ctx.n_in;
        for (int64_t i = 0; i < ctx.n_in; ++i) {
            out[i] += amplitude * half_to_float(atom[i]);
        }
    }
}

} // namespace seeddelta
