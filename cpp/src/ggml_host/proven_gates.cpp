#include "ggml_host/proven_gates.hpp"

#include <algorithm>
#include <memory>

namespace seeddelta {

std::vector<ProvenGate> proven_gates(GraphHook &hook) {
    struct Kind {
        const char *key, *name;
        unsigned feature;
        bool GateCounts::*has;
        uint64_t GraphHook::GateActivity::*count;
    };
    using Activity = GraphHook::GateActivity;
    constexpr Kind kinds[] = {
        {"kwta", "KWTA", kKwta, &GateCounts::kwta, &Activity::kwta},
        {"pack", "StatePack of the MLP", kPack, &GateCounts::pack, &Activity::pack},
        {"event", "event-driven inputs", kEvents, &GateCounts::event, &Activity::events},
        {"zeros", "skipping of zeros", kZeros, &GateCounts::zeros, &Activity::zeros},
    };
    const auto left_out = std::make_shared<unsigned>(0);
    std::vector<ProvenGate> found;
    for (const Kind &kind : kinds) {
        const auto has = [&](const Gate &gate) { return GateCounts::of(gate).*kind.has; };
        const auto places = std::count_if(hook.gates().begin(), hook.gates().end(), has);
        if (places == 0) {
            continue;
        }
        const bool events = kind.feature == kEvents;
        found.push_back({.key = kind.key,
                         .name = kind.name,
                         .count = [&hook, count = kind.count] { return hook.activity().*count; },
                         .pause =
                             [&hook, left_out, feature = kind.feature](bool out) {
                                 *left_out = out ? *left_out | feature : *left_out & ~feature;
                                 hook.pause(*left_out);
                             },
                         .given_up = [&hook, events] { return events ? hook.activity().given_up : 0; },
                         .places = [places] { return static_cast<uint64_t>(places); },
                         .run = events ? kEventRun : 1});
    }
    return found;
}

} // namespace seeddelta
