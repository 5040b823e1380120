// The converted weights of one file, shared by every llama context that computes with them. Knows nothing of a context.
#pragma once
#include <atomic>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>

#include "gating/compose.hpp"
#include "seeddelta/columns.hpp"
#include "seeddelta/weight.hpp"

namespace seeddelta {

// Rows of the dense matrix in a mapped file, any ggml type.
struct DenseRows {
    const uint8_t *data = nullptr; // borrowed
    int32_t type = 0;
    int64_t row_bytes = 0;
};

struct RegisteredWeight {
    std::string name;
    const seeddelta_ctx *ctx = nullptr;    // borrowed; of columns only the shape holds
    const ColumnWeight *columns = nullptr; // borrowed; null: stored by rows
    const GateSpec *gate = nullptr;        // of columns, null: all units
    seeddelta_ctx shape;                   // of columns
    DenseRows dense;
    std::atomic<bool> use_dense{false}; // set for good by the first result that is not finite, when `dense` is there
};

// Filled before the first context uses it, constant afterwards (but for use_dense).
class WeightRegistry {
public:
    // Throws std::invalid_argument for a name that is there already. The address is stable.
    RegisteredWeight &add(const std::string &name, const seeddelta_ctx &ctx);
    // The same for a matrix stored by columns. Weights that read the same input share a gate, or null.
    RegisteredWeight &add(const std::string &name, const ColumnWeight &columns, const GateSpec *gate);
    const GateSpec *add_gate(const GateSpec &spec) { return &gates_.emplace_back(spec); }
    std::deque<GateSpec> &gates() { return gates_; }
    RegisteredWeight *find(std::string_view name);
    std::deque<RegisteredWeight> &weights() { return weights_; }

private:
    std::deque<RegisteredWeight> weights_;
    std::deque<GateSpec> gates_;
    std::unordered_map<std::string_view, RegisteredWeight *> by_name_;
};

} // namespace seeddelta
