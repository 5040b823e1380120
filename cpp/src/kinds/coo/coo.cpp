#include "kinds/coo/kind.hpp"

namespace seeddelta::kinds {

void coo::build(const Builder &b) {
    const Array &index = b.in.d_idx;
    const bool wide = index.item_size == 4;
    require_array(index, "d_idx", "iu", wide ? 4 : 2, {b.rows(), -1});
    const int64_t k = index.shape[1];
    b.require(bool(b.in.d_val), "d_idx without d_val");
    b.c.scheme = ResidualScheme::coo;
    b.c.residual_size = static_cast<uint32_t>(k);
    b.c.residual_index = wide ? nullptr : index.as<uint16_t>();
    b.c.residual_index32 = wide ? index.as<uint32_t>() : nullptr;
    const char *const names[] = {"d_val", "d_scale"};
    b.set_values(b.in.d_val, b.in.d_scale, names, {b.rows(), k}, {b.rows()});
}

std::vector<const char *> coo::names(const seeddelta_ctx &) {
    return {"coo"};
}

std::string coo::check(const seeddelta_ctx &c, int64_t rows) {
    const int64_t k = c.residual_size;
    for (int64_t e = 0; e < rows * k; ++e) {
        const int64_t column =
            c.residual_index32 != nullptr ? static_cast<int64_t>(c.residual_index32[e]) : c.residual_index[e];
        if (column >= c.n_in) {
            return row_text("d_idx", e / k) + " is " + std::to_string(column) + ", beyond n_in " +
                   std::to_string(c.n_in);
        }
    }
    return {};
}

float coo::dot(const seeddelta_ctx &ctx, int64_t row, const float *x, const float *) {
    return entries_dot(ctx, row, x);
}

void coo::add(const seeddelta_ctx &ctx, int64_t row, float *out) {
    const int64_t first = row * ctx.residual_size;
    for (int64_t e = first; e < first + ctx.residual_size; ++e) {
        out[entry_column(ctx, e)] += entry_value(ctx, row, e);
    }
}

} // namespace seeddelta::kinds
