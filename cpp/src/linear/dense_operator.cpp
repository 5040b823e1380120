// Products and rows of a dense matrix: the fallback when the result of another operator is not finite.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "linear/operator.hpp"
#include "linear/workspace.hpp"

namespace seeddelta {

namespace {

// Eight partial sums, so that the compiler can use vectors without reordering a sum.
float dot(const float *a, const float *b, int64_t n) {
    float partial[8] = {};
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        for (int64_t j = 0; j < 8; ++j) {
            partial[j] += a[i + j] * b[i + j];
        }
    }
    for (; i < n; ++i) {
        partial[0] += a[i] * b[i];
    }
    return ((partial[0] + partial[4]) + (partial[1] + partial[5])) +
           ((partial[2] + partial[6]) + (partial[3] + partial[7]));
}

class DenseOperator final : public Operator {
public:
    DenseOperator(const MatrixShape &shape, const DenseRows &rows) : shape_(shape), rows_(rows) {}

    MatrixShape shape() const noexcept override { return shape_; }
    std::span<const char *const> names() const noexcept override { return {}; }
    bool fits(WeightUse) const noexcept override { return true; }

    int64_t reserve(const Work &work, const OperatorState &, int, Workspace &) const override {
        return scratch_bytes(work);
    }

    void run(const Work &work, OperatorState &, Workspace &, int ith, int nth,
             ComputeStatus &status) const noexcept override {
        const int64_t begin = shape_.n_out * ith / nth;
        const int64_t end = shape_.n_out * (ith + 1) / nth;
        bool finite = true;
        switch (work.use) {
        case WeightUse::lookup:
            finite = look_up(work, work.n_tokens * ith / nth, work.n_tokens * (ith + 1) / nth, status);
            break;
        case WeightUse::experts:
            finite = multiply_experts(work, begin, end, status);
            break;
        default:
            finite = multiply(work, begin, end);
        }
        if (!finite) {
            status.nonfinite_output.store(true, std::memory_order_relaxed);
        }
    }

private:
    int64_t scratch_bytes(const Work &work) const {
        const int64_t row = shape_.n_in * static_cast<int64_t>(sizeof(float));
        const int64_t lists = (shape_.n_experts + 1 + work.n_tokens) * static_cast<int64_t>(sizeof(int64_t));
        return work.use == WeightUse::experts ? lists + row : row;
    }

    bool widen(int64_t row, float *out) const { return rows_.read(row, out, shape_.n_in); }

    bool look_up(const Work &work, int64_t begin, int64_t end, ComputeStatus &status) const {
        bool finite = true;
        for (int64_t i = begin; i < end; ++i) {
            const int32_t row = work.row(i);
            if (row < 0 || row >= shape_.n_out) {
                std::memset(work.out(i), 0, static_cast<size_t>(shape_.n_in) * sizeof(float));
                status.bad_index.store(true, std::memory_order_relaxed);
            } else {
                finite = widen(row, work.out(i)) && finite;
            }
        }
        return finite;
    }

    // A row is widened once and multiplied with every token.
    bool multiply(const Work &work, int64_t begin, int64_t end) const {
        bool finite = true;
        auto *widened = reinterpret_cast<float *>(thread_scratch(scratch_bytes(work)));
        for (int64_t row = begin; row < end; ++row) {
            widen(row, widened);
            for (int64_t token = 0; token < work.n_tokens; ++token) {
                const auto *x = reinterpret_cast<const uint8_t *>(work.x) + token * work.x_stride;
                const float y = dot(widened, reinterpret_cast<const float *>(x), shape_.n_in);
                finite = finite && std::isfinite(y);
                work.out(token)[row] = y;
            }
        }
        return finite;
    }

    // Rows [begin, end) of every expert. A row is widened once and multiplied with every token that chose its expert.
    bool multiply_experts(const Work &work, int64_t begin, int64_t end, ComputeStatus &status) const {
        const ExpertBatch &b = work.batch;
        auto *last = reinterpret_cast<int64_t *>(thread_scratch(scratch_bytes(work)));
        int64_t *pairs = last + shape_.n_experts + 1; // by expert: those of one end where the next one's begin
        auto *widened = reinterpret_cast<float *>(pairs + b.pairs());
        const auto known = [&](int64_t expert) { return expert >= 0 && expert < shape_.n_experts; };
        const auto output = [&](int64_t pair) {
            return reinterpret_cast<float *>(reinterpret_cast<uint8_t *>(b.y) + pair * b.y_stride);
        };
        std::fill_n(last, shape_.n_experts + 1, int64_t{0});
        for (int64_t pair = 0; pair < b.pairs(); ++pair) {
            const int64_t expert = b.expert_of(pair);
            if (known(expert)) {
                ++last[expert + 1];
                continue;
            }
            status.bad_index.store(true, std::memory_order_relaxed);
            std::fill(output(pair) + begin, output(pair) + end, 0.0F);
        }
        std::partial_sum(last, last + shape_.n_experts + 1, last);
        for (int64_t pair = 0; pair < b.pairs(); ++pair) {
            const int64_t expert = b.expert_of(pair);
            if (known(expert)) {
                pairs[last[expert]++] = pair;
            }
        }
        bool finite = true;
        for (int64_t expert = 0, i = 0; expert < shape_.n_experts; i = last[expert++]) {
            for (int64_t row = begin; row < end && i < last[expert]; ++row) {
                widen(expert * shape_.n_out + row, widened);
                for (int64_t at = i; at < last[expert]; ++at) {
                    const float y = dot(widened, b.input_of(pairs[at]), shape_.n_in);
                    finite = finite && std::isfinite(y);
                    output(pairs[at])[row] = y;
                }
            }
        }
        return finite;
    }

    MatrixShape shape_;
    DenseRows rows_;
};

} // namespace

bool DenseRows::read(int64_t row, float *out, int64_t n) const {
    const uint8_t *source = data + row * row_bytes;
    if (widen == nullptr) {
        std::memcpy(out, source, static_cast<size_t>(n) * sizeof(float));
    } else {
        widen(source, out, n);
    }
    return std::all_of(out, out + n, [](float x) { return std::isfinite(x); });
}

std::unique_ptr<Operator> dense_operator(const MatrixShape &shape, const DenseRows &rows) {
    return std::make_unique<DenseOperator>(shape, rows);
}

} // namespace seeddelta
