// Residual scheme block: the kept blocks of 32 or 64 neighboring columns of every row, int8 with a float16 scale a
// block, or float16. docs/reference/format.md. In seeddelta_ctx: residual_size blocks a row, residual_index [n_out,
// kept] their numbers, residual_vals_* [n_out, kept, residual_block], residual_scale [n_out, kept].
#pragma once
#include "kinds/entries.hpp"

namespace seeddelta {

// Columns of a block that the matrix has: the last one may reach beyond n_in.
static inline int64_t block_columns(const seeddelta_ctx &ctx, int64_t column) {
    const int64_t block = ctx.residual_block;
    return ctx.n_in - column < block ? ctx.n_in - column : block;
}

namespace kinds {

struct block {
    static constexpr ResidualScheme kScheme = ResidualScheme::block;
    static constexpr const char *kNames[] = {"block"};
    static constexpr bool kPrepares = false;
    static void build(const Builder &b);
    static std::vector<const char *> names(const seeddelta_ctx &ctx);
    static std::string check(const seeddelta_ctx &c, int64_t rows);
    static float dot(const seeddelta_ctx &ctx, int64_t row, const float *x, const float *p);
    static void add(const seeddelta_ctx &ctx, int64_t row, float *out);
};

} // namespace kinds
} // namespace seeddelta
