// What contexts did, added up.
#pragma once
#include <cstdint>
#include <vector>

#include "gating/counts.hpp"
#include "ggml_host/graph_hook.hpp"
#include "runtime/own_attention.hpp"

namespace seeddelta {

struct Totals {
    std::vector<Counters<WeightCount>> weights; // in the order of the registry
    std::vector<GateCounts> gates;              // in the order of the registry
    std::vector<Metric> proof;                  // of the last context whose gates were on trial
    uint64_t nodes_seen = 0;
    AttentionTotals attention;

    // What a context's weights, gates and attention did.
    void add(const GraphHook &hook);
};

} // namespace seeddelta
