// Registers the weights of a model together with what chooses their inputs.
#pragma once
#include <string>
#include <variant>
#include <vector>

#include "gating/plan.hpp"
#include "ggml_host/weight_registry.hpp"

namespace seeddelta {

// A weight of a SeedΔ file, or a matrix by columns of an ordinary model. Borrowed.
struct NamedWeight {
    std::string name;
    std::variant<const CheckedWeight *, const ColumnWeight *> weight;
};

// Returns the matrices of each gate, in the order of the registry's. Throws what plan_gates throws.
std::vector<Names> add_weights(WeightRegistry &registry, const SkipSettings &settings, const ModelNames &model,
                               const std::vector<NamedWeight> &weights);

} // namespace seeddelta
