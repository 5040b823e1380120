// Matrices by rows: any base and residual of the format.
#include <cmath>
#include <cstring>

#include "kinds/kinds.hpp"
#include "linear/operator.hpp"
#include "linear/workspace.hpp"

namespace seeddelta {

std::span<const char *const> operator_names() {
    static const std::vector<const char *> names = [] {
        std::vector<const char *> all = {"lanes", "proc_sparse", "columns_f16", "columns_lanes"};
        Kinds::each([&]<class K>() { all.insert(all.end(), std::begin(K::kNames), std::end(K::kNames)); });
        return all;
    }();
    return names;
}

static std::vector<const char *> names_of(const seeddelta_ctx &ctx) {
    std::vector<const char *> names;
    if (ctx.base == BaseKind::lanes) {
        names.push_back("lanes");
    }
    if (ctx.scheme == ResidualScheme::proc_sparse) {
        names.push_back("proc_sparse");
    }
    Kinds::both(ctx, [&]<class K>() {
        for (const char *name : K::names(ctx)) {
            names.push_back(name);
        }
    });
    return names;
}

bool can_reuse(const InputForm &a, const InputForm &b) {
    if (a.by_column || b.by_column) {
        return a.by_column && b.by_column && a.shape.n_in == b.shape.n_in && a.gate == b.gate;
    }
    const auto columns = static_cast<size_t>(a.shape.n_experts * a.shape.n_in);
    return a.gate == b.gate && a.scale_groups == b.scale_groups && a.shape.n_in == b.shape.n_in &&
           a.rotation_block == b.rotation_block && a.shape.n_experts == b.shape.n_experts &&
           (a.rotation_block <= 1 || a.rotation_seed == b.rotation_seed) &&
           (a.column_scale == b.column_scale || (a.column_scale != nullptr && b.column_scale != nullptr &&
                                                 std::memcmp(a.column_scale, b.column_scale, columns) == 0)) &&
           (a.shape.n_experts == 1 || a.with_x || !b.with_x);
}

namespace {

class RowOperator final : public Operator {
public:
    explicit RowOperator(const seeddelta_ctx &ctx) : ctx_(ctx), names_(names_of(ctx)) {}

    MatrixShape shape() const noexcept override { return {ctx_.n_out, ctx_.n_in, ctx_.n_experts}; }
    std::span<const char *const> names() const noexcept override { return names_; }
    bool fits(WeightUse use) const noexcept override { return ctx_.n_experts == 1 || use == WeightUse::experts; }
    InputForm input_form() const noexcept override {
        return {.shape = shape(),
                .rotation_block = ctx_.rotation_block,
                .rotation_seed = ctx_.base_seed,
                .column_scale = ctx_.column_scale,
                .with_x = ctx_.scheme != ResidualScheme::none,
                .scale_groups = ctx_.scale_groups()};
    }

    int64_t reserve(const Work &work, const OperatorState &, int, Workspace &workspace) const override {
        switch (work.use) {
        case WeightUse::lookup:
            return lookup_scratch(ctx_);
        case WeightUse::experts:
            workspace.reserve(work.batch, ctx_);
            break;
        default:
            workspace.reserve(work.n_tokens, ctx_);
        }
        return product_scratch(ctx_, work.n_tokens);
    }

    void run(const Work &work, OperatorState &, Workspace &workspace, int ith, int nth,
             ComputeStatus &status) const noexcept override {
        switch (work.use) {
        case WeightUse::lookup:
            return look_up(work, ith, nth, status);
        case WeightUse::experts:
            return seeddelta_compute_experts(ctx_, work.batch, workspace, ith, nth, work.reuse, status);
        default:
            return seeddelta_compute_threaded(ctx_, work.x, work.n_tokens, work.x_stride, work.y, work.y_stride,
                                              workspace, ith, nth, work.reuse, status);
        }
    }

    Tally tally(const Work &work, Workspace &workspace) const noexcept override {
        return {.experts = work.use == WeightUse::experts ? workspace.experts() : 0};
    }

    bool prefetch(int ith, int nth) const noexcept override { return seeddelta_prefetch(ctx_, ith, nth); }

private:
    // A thread does its share of the rows.
    void look_up(const Work &work, int ith, int nth, ComputeStatus &status) const noexcept {
        for (int64_t i = work.n_tokens * ith / nth; i < work.n_tokens * (ith + 1) / nth; ++i) {
            const int32_t row = work.row(i);
            float *out = work.out(i);
            if (row < 0 || row >= ctx_.n_out) {
                std::memset(out, 0, static_cast<size_t>(ctx_.n_in) * sizeof(float));
                status.bad_index.store(true, std::memory_order_relaxed);
                continue;
            }
            seeddelta_dequantize(ctx_, row, row + 1, out);
            bool finite = true;
            for (int64_t column = 0; column < ctx_.n_in; ++column) {
                finite = finite && std::isfinite(out[column]);
            }
            if (!finite) {
                status.nonfinite_output.store(true, std::memory_order_relaxed);
            }
        }
    }

    const seeddelta_ctx &ctx_;
    std::vector<const char *> names_;
};

} // namespace

std::unique_ptr<Operator> row_operator(const seeddelta_ctx &ctx) {
    return std::make_unique<RowOperator>(ctx);
}

} // namespace seeddelta
