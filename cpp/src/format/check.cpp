#include "seeddelta/check.hpp"

#include <cmath>

#include "format/proc_sparse.hpp"
#include "format/float16.hpp"

namespace seeddelta {

namespace {

std::string row_text(const char *array, int64_t row) {
    return std::string(array) + " of row " + std::to_string(row);
}

std::string check_row_scale(const seeddelta_ctx &c, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
        const float s = c.row_scale_f16 != nullptr ? half_to_float(c.row_scale_f16[i]) : c.row_scale_f32[i];
        if (!std::isfinite(s)) {
            return "row_scale[" + std::to_string(i) + "] is not finite";
        }
    }
    return {};
}

std::string check_coo(const seeddelta_ctx &c, int64_t rows) {
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

std::string check_block(const seeddelta_ctx &c, int64_t rows) {
    const int64_t kept = c.residual_size;
    const int64_t n_blocks = (c.n_in + c.residual_block - 1) / c.residual_block;
    for (int64_t e = 0; e < rows * kept; ++e) {
        const bool ascends = e % kept == 0 || c.residual_index[e - 1] < c.residual_index[e];
        if (!ascends || c.residual_index[e] >= n_blocks) {
            return row_text("b_map", e / kept) + " does not ascend below " + std::to_string(n_blocks) + " blocks";
        }
    }
    return {};
}

std::string check_codebook(const seeddelta_ctx &c, int64_t rows) {
    const int64_t k = c.residual_size;
    for (int64_t e = 0; e < rows * k; ++e) {
        if (c.residual_index[e] >= c.dictionary_size) {
            return row_text("r_codes", e / k) + " has atom " + std::to_string(c.residual_index[e]) + " of " +
                   std::to_string(c.dictionary_size);
        }
    }
    return {};
}

std::string check_proc_sparse(const seeddelta_ctx &c) {
    const int64_t blocks = proc_blocks(c);
    for (int64_t row = 0; row < c.n_out; ++row) {
        int64_t count = 0;
        int64_t last = -1;
        for_kept_blocks(c, row, [&](int64_t, int64_t block) { ++count, last = block; });
        if (count != c.residual_size || last >= blocks) {
            return row_text("p_map", row) + " does not have " + std::to_string(c.residual_size) + " of " +
                   std::to_string(blocks) + " blocks";
        }
    }
    return {};
}

} // namespace

bool trellis_rate_supported(int step_bits, int values_per_step) {
    return (values_per_step == 1 && step_bits >= 1 && step_bits <= 6) ||
           (values_per_step == 2 && (step_bits == 3 || step_bits == 5));
}

std::string check_contents(const seeddelta_ctx &ctx) {
    const int64_t rows = ctx.n_experts * ctx.n_out;
    std::string wrong = check_row_scale(ctx, ctx.columns != nullptr ? ctx.n_in : rows);
    if (!wrong.empty()) {
        return wrong;
    }
    switch (ctx.scheme) {
    case ResidualScheme::coo:
        return check_coo(ctx, rows);
    case ResidualScheme::block:
        return check_block(ctx, rows);
    case ResidualScheme::codebook_resid:
        return check_codebook(ctx, rows);
    case ResidualScheme::proc_sparse:
        return check_proc_sparse(ctx);
    case ResidualScheme::none:
        break;
    }
    return {};
}

} // namespace seeddelta
