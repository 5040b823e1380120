// The seam between a runtime that walks a graph and the matrices that it multiplies by. An operator is one matrix, or
// the matrices of all experts of a layer, in one way of storing it; nobody else knows which. It is constant and shared
// by all contexts: what belongs to one is handed in.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "gating/compose.hpp"
#include "seeddelta/columns.hpp"
#include "seeddelta/compute.hpp"

namespace seeddelta {

// What a node of a graph does with a matrix: y = W x; y = W[e] x for the experts e of every token, or for the head e of
// every x; rows of W by number.
enum class WeightUse : uint8_t { none, product, experts, lookup };

struct MatrixShape {
    int64_t n_out = 0; // of one expert
    int64_t n_in = 0;
    int64_t n_experts = 1;
    bool operator==(const MatrixShape &) const = default;
};

// The operands of a node. Strides are in bytes, float32 where nothing else is said.
struct Work {
    WeightUse use = WeightUse::none;
    bool reuse = false;   // x and ids are those of the last node, whose operator left what this one needs (can_reuse)
    int64_t n_tokens = 0; // of products, pairs of token and expert, or rows
    const float *x = nullptr; // product
    int64_t x_stride = 0;
    float *y = nullptr; // product, lookup
    int64_t y_stride = 0;
    const uint8_t *rows = nullptr; // lookup: int32 numbers
    int64_t row_stride = 0;
    ExpertBatch batch = {}; // experts; has all operands

    int32_t row(int64_t i) const {
        int32_t number = 0;
        std::memcpy(&number, rows + i * row_stride, sizeof(number));
        return number;
    }
    float *out(int64_t i) const { return reinterpret_cast<float *>(reinterpret_cast<uint8_t *>(y) + i * y_stride); }
};

// What an operator leaves of its input in the workspace.
struct InputForm {
    bool by_column = false;
    const GateSpec *gate = nullptr; // null: all units
    MatrixShape shape;
    uint32_t rotation_block = 0;
    uint64_t rotation_seed = 0;
    const int8_t *column_scale = nullptr; // [n_experts, n_in]
    bool with_x = false;                  // experts: x is copied, too
    int64_t scale_groups = 1;             // of 64 columns, rounded alike
};

// Whether what `made` has left is what `wanted` needs, for the same x.
bool can_reuse(const InputForm &made, const InputForm &wanted);

// An operator in one context. Both may be missing.
struct OperatorState {
    Gate *gate = nullptr;
    std::vector<float> outputs; // of a gate with events, [n_out]
};

// What a product has done, once it is done.
struct Tally {
    int64_t experts = 0; // computed with, each once
    int64_t blocks = 0;  // of proc_sparse, multiplied
    int64_t active = 0;  // inputs computed with, where some may be left out
    int64_t skipped = 0; // and those left out
};

class Operator {
public:
    Operator() = default;
    Operator(const Operator &) = delete;
    Operator &operator=(const Operator &) = delete;
    virtual ~Operator() = default;

    virtual MatrixShape shape() const noexcept = 0;
    // What its products are counted as, some of operator_names().
    virtual std::span<const char *const> names() const noexcept = 0;
    virtual bool fits(WeightUse use) const noexcept = 0;
    virtual InputForm input_form() const noexcept { return {.shape = shape()}; }
    virtual const GateSpec *gate() const noexcept { return nullptr; }
    // Makes room for computing `work` by so many threads. Returns the bytes of scratch that each of them needs. Throws
    // std::bad_alloc. Not thread safe.
    virtual int64_t reserve(const Work &work, const OperatorState &state, int threads, Workspace &workspace) const = 0;
    // All nth threads call this with the same arguments but ith. May contain spin barriers.
    virtual void run(const Work &work, OperatorState &state, Workspace &workspace, int ith, int nth,
                     ComputeStatus &status) const noexcept = 0;
    // Of the product that was computed last.
    virtual Tally tally(const Work &, Workspace &) const noexcept { return {}; }
    // Asks the memory for what a product begins with. False when there is nothing to ask for.
    virtual bool prefetch(int, int) const noexcept { return false; }
};

// All names that products are counted under.
std::span<const char *const> operator_names();

// The following borrow what they are given.
// A matrix by rows, or those of experts.
std::unique_ptr<Operator> row_operator(const seeddelta_ctx &ctx);
std::unique_ptr<Operator> column_operator(const ColumnWeight &w, const GateSpec *gate);
// A proc_sparse matrix. With a gate, blocks that a row keeps are read where the gate has chosen an input of them.
std::unique_ptr<Operator> proc_operator(const seeddelta_ctx &ctx, const GateSpec *gate);

// Rows of a dense matrix in a mapped file.
struct DenseRows {
    const uint8_t *data = nullptr;
    int64_t row_bytes = 0;
    void (*widen)(const void *row, float *out, int64_t n) = nullptr; // null: they are float32

    // One row of n columns. False when it has NaN or infinity.
    bool read(int64_t row, float *out, int64_t n) const;
};
// Plain code for a rare case. Looks at its results only.
std::unique_ptr<Operator> dense_operator(const MatrixShape &shape, const DenseRows &rows);

} // namespace seeddelta
