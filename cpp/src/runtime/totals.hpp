// What contexts did, added up.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <iterator>
#include <vector>

#include "gating/counts.hpp"
#include "ggml_host/graph_hook.hpp"
#include "runtime/own_attention.hpp"

namespace seeddelta {

struct WeightCount {
    const char *name;
    std::atomic<uint64_t> WeightCounters::*member;
};

// By the names of metrics; the first one has none.
inline constexpr WeightCount kWeightCounts[] = {{"own_calls", &WeightCounters::own_calls},
                                                {"rewrites", &WeightCounters::rewrites},
                                                {"calls", &WeightCounters::calls},
                                                {"tokens", &WeightCounters::tokens},
                                                {"reused", &WeightCounters::reused},
                                                {"prefetched", &WeightCounters::prefetched},
                                                {"rows", &WeightCounters::rows},
                                                {"experts", &WeightCounters::experts},
                                                {"dense_calls", &WeightCounters::dense_calls},
                                                {"nonfinite_events", &WeightCounters::nonfinite_events},
                                                {"active_inputs", &WeightCounters::active_inputs},
                                                {"skipped_inputs", &WeightCounters::skipped_inputs},
                                                {"blocks", &WeightCounters::blocks}};
inline constexpr size_t kOwnCalls = 0, kRewrites = 1, kBlocks = 12;
using Counts = std::array<uint64_t, std::size(kWeightCounts)>; // of one weight

struct Totals {
    std::vector<Counts> weights;   // in the order of the registry
    std::vector<GateCounts> gates; // in the order of the registry
    std::vector<Metric> proof;     // of the last context whose gates were on trial
    uint64_t nodes_seen = 0;
    AttentionTotals attention;

    // What a context's weights, gates and attention did.
    void add(const GraphHook &hook);
};

} // namespace seeddelta
