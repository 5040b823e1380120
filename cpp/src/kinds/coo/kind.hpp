// Residual scheme coo: the top-K entries of every row, exact columns, float16 or int8 values. docs/reference/format.md.
#pragma once
#include "kinds/entries.hpp"

namespace seeddelta::kinds {

struct coo {
    static constexpr ResidualScheme kScheme = ResidualScheme::coo;
    static constexpr const char *kNames[] = {"coo"};
    static constexpr bool kPrepares = false;
    static void build(const Builder &b);
    static std::vector<const char *> names(const seeddelta_ctx &ctx);
    static std::string check(const seeddelta_ctx &c, int64_t rows);
    static float dot(const seeddelta_ctx &ctx, int64_t row, const float *x, const float *p);
    static void add(const seeddelta_ctx &ctx, int64_t row, float *out);
};

} // namespace seeddelta::kinds
