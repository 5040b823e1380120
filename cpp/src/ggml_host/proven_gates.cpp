#include "ggml_host/proven_gates.hpp"

#include <algorithm>
#include <memory>

namespace seeddelta {

// What chooses keys or windows in attention.
static void add_attention(std::vector<ProvenGate> &found, AttentionHook &own) {
    const auto pause = [&own](bool exact) { own.pause(exact); };
    const SelectorTotals &totals = own.totals();
    if (own.settings().event.enabled) {
        const EventCounters &events = totals.event;
        found.push_back({.key = "event",
                         .name = "event-driven attention",
                         .count = [&events] { return events[EventCount::operations] - events[EventCount::full]; },
                         .pause = pause,
                         .given_up = [&own] { return static_cast<uint64_t>(own.report().event_given_up); },
                         .places = [&own] { return static_cast<uint64_t>(own.report().event_layers); },
                         .run = kEventRun});
    } else if (own.settings().chooses_keys()) {
        const bool of_both =
            std::any_of(found.begin(), found.end(), [](const ProvenGate &gate) { return gate.key == "pack"; });
        const Counters<PackCount> &pack = totals.pack;
        found.push_back({.key = of_both ? "pack.kv" : "pack",
                         .name = "StatePack of attention",
                         .count = [&pack] { return pack[PackCount::operations]; },
                         .pause = pause,
                         .given_up = [&pack] { return pack[PackCount::disabled]; },
                         .places =
                             [&own, &pack] {
                                 return static_cast<uint64_t>(own.report().packed_layers) + pack[PackCount::disabled];
                             },
                         .remedy = "see --state-pack-kv-gap-limit"});
    }
}

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
    if (hook.attention() != nullptr) {
        add_attention(found, *hook.attention());
    }
    return found;
}

} // namespace seeddelta
