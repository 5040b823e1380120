// What gates have done, to be added up and told in the names of `seeddelta run --metrics-json`.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "gating/compose.hpp"
#include "gating/settings.hpp"

namespace seeddelta {

struct GateCounts {
    bool kwta = false, pack = false, event = false, zeros = false; // what it has
    Counters<GateCount> counts;                                    // since it was made
    // As it is now.
    double keep = 1.0, kwta_gap = 0.0, event_gap = 0.0, event_ns = 0.0, gamma = 0.0;
    int duty = 1;
    bool event_active = false;

    static GateCounts of(const Gate &gate);
    // Of the same gate in another context, a later one.
    void add(const GateCounts &other);
};

struct Metric {
    std::string name;
    double value = 0.0;
    bool whole = false;
};

// kwta.*, pack.*, zeros.* and event.*; none of what is not asked for.
std::vector<Metric> skipping_metrics(const SkipSettings &settings, const std::vector<GateCounts> &gates);

} // namespace seeddelta
