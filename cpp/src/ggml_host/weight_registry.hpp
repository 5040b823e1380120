// The converted weights of one file, shared by every llama context that computes with them. Knows nothing of a context.
#pragma once
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "linear/operator.hpp"

namespace seeddelta {

struct RegisteredWeight {
    std::string name;
    std::unique_ptr<Operator> op;
    std::unique_ptr<Operator> dense;    // of the original model; null: there is none
    std::atomic<bool> use_dense{false}; // set for good by the first result that is not finite, when `dense` is there
};

// Filled before the first context uses it, constant afterwards (but for use_dense).
class WeightRegistry {
public:
    // Throws std::invalid_argument for a name that is there already. The address is stable. Operators by column that
    // read the same input share a gate of the registry.
    RegisteredWeight &add(const std::string &name, std::unique_ptr<Operator> op);
    // With norms for the scores of its inputs, which the registry keeps; empty: none.
    const GateSpec *add_gate(GateSpec spec, std::vector<float> norms) {
        if (!norms.empty()) {
            spec.kwta.norm = norms_.emplace_back(std::move(norms)).data();
        }
        return &gates_.emplace_back(spec);
    }
    std::deque<GateSpec> &gates() { return gates_; }
    RegisteredWeight *find(std::string_view name);
    std::deque<RegisteredWeight> &weights() { return weights_; }

private:
    std::deque<RegisteredWeight> weights_;
    std::deque<GateSpec> gates_;
    std::deque<std::vector<float>> norms_; // of the gates
    std::unordered_map<std::string_view, RegisteredWeight *> by_name_;
};

} // namespace seeddelta
