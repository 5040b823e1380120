// Residual scheme codebook_resid: a row is a sum of k atoms of a dictionary that all rows share,
// docs/reference/format.md. In seeddelta_ctx: dictionary [dictionary_size, n_in], residual_size = k, residual_index
// [n_out, k] the atoms' numbers, residual_vals_f16 [n_out, k] their amplitudes. The product needs p = dictionary * x
// once; a row is then what entries_dot makes of p.
#pragma once
#include "kinds/entries.hpp"
#include "kinds/prepare.hpp"

namespace seeddelta {

// Definition: p[t, m] for the atoms [begin, end) and all tokens. atom is scratch of n_in floats.
void dictionary_dot(const seeddelta_ctx &ctx, int64_t begin, int64_t end, const float *x, int64_t n_tokens,
                    int64_t x_stride, float *p, float *atom);

namespace kinds {

struct codebook_resid {
    static constexpr ResidualScheme kScheme = ResidualScheme::codebook_resid;
    static constexpr const char *kNames[] = {"codebook_resid", "statecells"};
    static constexpr bool kPrepares = true;
    static void build(const Builder &b);
    static std::vector<const char *> names(const seeddelta_ctx &ctx);
    static std::string check(const seeddelta_ctx &c, int64_t rows);
    static float dot(const seeddelta_ctx &ctx, int64_t row, const float *x, const float *p);
    static void add(const seeddelta_ctx &ctx, int64_t row, float *out);
    static int64_t prepare_floats(const seeddelta_ctx &ctx) { return ctx.n_in; } // an atom
    static void prepare(const seeddelta_ctx &ctx, const PrepareWork &work, float *scratch);
};

} // namespace kinds
} // namespace seeddelta
