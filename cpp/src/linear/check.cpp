#include "seeddelta/check.hpp"

#include <cmath>

#include "format/float16.hpp"
#include "format/proc_sparse.hpp"
#include "kinds/builder.hpp"
#include "kinds/kinds.hpp"

namespace seeddelta {

namespace {

std::string check_proc_sparse(const seeddelta_ctx &c) {
    const int64_t blocks = proc_blocks(c);
    for (int64_t row = 0; row < c.n_out; ++row) {
        int64_t count = 0;
        int64_t last = -1;
        for_kept_blocks(c, row, [&](int64_t, int64_t block) { ++count, last = block; });
        if (count != c.residual_size || last >= blocks) {
            return "p_map of row " + std::to_string(row) + " does not have " + std::to_string(c.residual_size) +
                   " of " + std::to_string(blocks) + " blocks";
        }
    }
    return {};
}

} // namespace

std::string check_row_scale(const seeddelta_ctx &c, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
        const float s = c.row_scale_f16 != nullptr ? half_to_float(c.row_scale_f16[i]) : c.row_scale_f32[i];
        if (!std::isfinite(s)) {
            return "row_scale[" + std::to_string(i) + "] is not finite";
        }
    }
    return {};
}

std::string check_contents(const seeddelta_ctx &ctx) {
    const int64_t rows = ctx.n_experts * ctx.n_out;
    std::string wrong = check_row_scale(ctx, rows);
    if (wrong.empty() && ctx.scheme == ResidualScheme::proc_sparse) {
        wrong = check_proc_sparse(ctx);
    }
    const auto unknown = [](const char *what, uint32_t number) {
        return std::string(what) + " " + std::to_string(number) + " is not known to this build";
    };
    if (!Kinds::scheme(ctx.scheme, [&]<class K>() { wrong = wrong.empty() ? K::check(ctx, rows) : wrong; }) &&
        ctx.scheme != ResidualScheme::none && ctx.scheme != ResidualScheme::proc_sparse) {
        return unknown("residual scheme", static_cast<uint32_t>(ctx.scheme));
    }
    const bool of_blocks = ctx.base == BaseKind::prng_block && ctx.scheme == ResidualScheme::proc_sparse;
    if (!Kinds::base(ctx.base, []<class K>() {}) && ctx.base != BaseKind::lanes && ctx.base != BaseKind::none &&
        !of_blocks) {
        return unknown("base kind", static_cast<uint32_t>(ctx.base));
    }
    return wrong;
}

} // namespace seeddelta
