#include "runtime/totals.hpp"

namespace seeddelta {

void Totals::add(const GraphHook &hook) {
    weights.resize(hook.served().size());
    size_t at = 0;
    for (const ServedWeight &served : hook.served()) {
        Counts &total = weights[at++];
        for (size_t i = 0; i < total.size(); ++i) {
            total[i] += (served.counters.*kWeightCounts[i].member).load();
        }
    }
    gates.resize(hook.gates().size());
    at = 0;
    for (const Gate &gate : hook.gates()) {
        gates[at++].add(GateCounts::of(gate));
    }
    nodes_seen += hook.nodes_seen();
    if (hook.attention() != nullptr) {
        attention.add(*hook.attention());
    }
}

} // namespace seeddelta
