// What chooses the inputs of the products of a context, and the keys of its attention, by kind, for a proof that it
// pays.
#pragma once
#include <vector>

#include "gating/trial.hpp"
#include "ggml_host/graph_hook.hpp"

namespace seeddelta {

// The hook is borrowed. Empty where nothing is chosen.
std::vector<ProvenGate> proven_gates(GraphHook &hook);

} // namespace seeddelta
