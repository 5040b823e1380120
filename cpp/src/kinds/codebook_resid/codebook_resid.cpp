#include "kinds/codebook_resid/kind.hpp"

namespace seeddelta {

void dictionary_dot(const seeddelta_ctx &ctx, int64_t begin, int64_t end, const float *x, int64_t n_tokens,
                    int64_t x_stride, float *p, float *atom) {
    for (int64_t m = begin; m < end; ++m) {
        for (int64_t i = 0; i < ctx.n_in; ++i) {
            atom[i] = half_to_float(ctx.dictionary[m * ctx.n_in + i]);
        }
        for (int64_t token = 0; token < n_tokens; ++token) {
            float partial[kSumLanes] = {};
            for (int64_t i = 0; i < ctx.n_in; ++i) {
                partial[i % kSumLanes] += atom[i] * x[token * x_stride + i];
            }
            p[token * ctx.dictionary_size + m] = reduce_sums(partial);
        }
    }
}

namespace kinds {

void codebook_resid::build(const Builder &b) {
    const Array &dictionary = b.in.r_dict;
    require_array(dictionary, "r_dict", "f", 2, {-1, b.c.n_in});
    const int64_t atoms = dictionary.shape[0];
    b.require(atoms > 0 && atoms <= 65536, "r_dict must have 1 to 65536 atoms");
    b.require(b.in.r_codes && b.in.r_vals, "r_dict without r_codes and r_vals");
    require_array(b.in.r_codes, "r_codes", "iu", 2, {b.rows(), -1});
    const int64_t k = b.in.r_codes.shape[1];
    require_array(b.in.r_vals, "r_vals", "f", 2, {b.rows(), k});
    b.c.scheme = ResidualScheme::codebook_resid;
    b.c.residual_size = static_cast<uint32_t>(k);
    b.c.dictionary_size = static_cast<uint32_t>(atoms);
    b.c.dictionary = dictionary.as<uint16_t>();
    b.c.residual_index = b.in.r_codes.as<uint16_t>();
    b.c.residual_vals_f16 = b.in.r_vals.as<uint16_t>();
}

// A whole matrix made of a codebook (docs/guide/statecells.md) is counted apart.
std::vector<const char *> codebook_resid::names(const seeddelta_ctx &ctx) {
    return {ctx.base == BaseKind::none ? "statecells" : "codebook_resid"};
}

std::string codebook_resid::check(const seeddelta_ctx &c, int64_t rows) {
    const int64_t k = c.residual_size;
    for (int64_t e = 0; e < rows * k; ++e) {
        if (c.residual_index[e] >= c.dictionary_size) {
            return row_text("r_codes", e / k) + " has atom " + std::to_string(c.residual_index[e]) + " of " +
                   std::to_string(c.dictionary_size);
        }
    }
    return {};
}

float codebook_resid::dot(const seeddelta_ctx &ctx, int64_t row, const float *, const float *p) {
    return entries_dot(ctx, row, p);
}

void codebook_resid::add(const seeddelta_ctx &ctx, int64_t row, float *out) {
    for (int64_t entry = row * ctx.residual_size; entry < (row + 1) * ctx.residual_size; ++entry) {
        const float amplitude = half_to_float(ctx.residual_vals_f16[entry]);
        const uint16_t *atom = ctx.dictionary + ctx.residual_index[entry] * ctx.n_in;
        for (int64_t i = 0; i < ctx.n_in; ++i) {
            out[i] += amplitude * half_to_float(atom[i]);
        }
    }
}

void codebook_resid::prepare(const seeddelta_ctx &ctx, const PrepareWork &w, float *scratch) {
    const int64_t atoms = ctx.dictionary_size;
    dictionary_dot(ctx, atoms * w.ith / w.nth, atoms * (w.ith + 1) / w.nth, w.x, w.n_tokens, w.x_stride, w.p, scratch);
}

} // namespace kinds
} // namespace seeddelta
