// Matrices by columns, with or without a gate.
#include "linear/operator.hpp"
#include "linear/workspace.hpp"

namespace seeddelta {

namespace {

class ColumnOperator final : public Operator {
public:
    ColumnOperator(const ColumnWeight &w, const GateSpec *gate) : w_(w), gate_(gate) {
        static constexpr const char *kNames[] = {"columns_f16", "columns_lanes"};
        name_[0] = kNames[static_cast<uint32_t>(w.kind)];
    }

    MatrixShape shape() const noexcept override { return {w_.n_out, w_.n_in, 1}; }
    std::span<const char *const> names() const noexcept override { return name_; }
    bool fits(WeightUse use) const noexcept override { return use == WeightUse::product; }
    InputForm input_form() const noexcept override { return {.by_column = true, .gate = gate_, .shape = shape()}; }
    const GateSpec *gate() const noexcept override { return gate_; }

    int64_t reserve(const Work &work, const OperatorState &state, int threads, Workspace &workspace) const override {
        return columns_reserve(w_, state.gate != nullptr, work.n_tokens, threads, workspace);
    }

    void run(const Work &work, OperatorState &state, Workspace &workspace, int ith, int nth,
             ComputeStatus &status) const noexcept override {
        columns_compute_threaded(w_, state.gate, work.x, work.n_tokens, work.x_stride, work.y, work.y_stride, workspace,
                                 ith, nth, work.reuse, status, state.outputs.data());
    }

    // With a gate it is not known yet which units will be read.
    bool prefetch(int ith, int nth) const noexcept override {
        return gate_ == nullptr && columns_prefetch(w_, ith, nth);
    }

    Tally tally(const Work &work, Workspace &workspace) const noexcept override {
        const int64_t active = workspace.impl().active.load(std::memory_order_relaxed);
        return {.active = active, .skipped = work.n_tokens * w_.n_in - active};
    }

private:
    const ColumnWeight &w_;
    const GateSpec *gate_;
    const char *name_[1] = {};
};

} // namespace

std::unique_ptr<Operator> column_operator(const ColumnWeight &w, const GateSpec *gate) {
    return std::make_unique<ColumnOperator>(w, gate);
}

} // namespace seeddelta
