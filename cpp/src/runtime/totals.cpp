#include "runtime/totals.hpp"

namespace seeddelta {

void Totals::add(const GraphHook &hook) {
    weights.resize(hook.served().size());
    size_t at = 0;
    for (const ServedWeight &served : hook.served()) {
        weights[at++] += served.counters;
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
