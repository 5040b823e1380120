#include "gating/counts.hpp"

#include <algorithm>

namespace seeddelta {

namespace {

using enum GateCount;

using Has = bool GateCounts::*;

// Sums over the gates that have something.
class Sums {
public:
    Sums(const std::vector<GateCounts> &gates, Has has) {
        std::copy_if(gates.begin(), gates.end(), std::back_inserter(gates_),
                     [&](const GateCounts &gate) { return gate.*has; });
    }
    template <class F>
    double sum(F &&value) const {
        double total = 0.0;
        for (const GateCounts &gate : gates_) {
            total += static_cast<double>(value(gate));
        }
        return total;
    }
    double total(GateCount count) const {
        return sum([&](const GateCounts &gate) { return gate.counts[count]; });
    }
    double share(GateCount part, GateCount whole) const { return total(whole) > 0 ? total(part) / total(whole) : 0.0; }
    template <class F>
    double mean(F &&value) const {
        return sum(value) / static_cast<double>(std::max<size_t>(gates_.size(), 1));
    }
    template <class F>
    double largest(F &&value) const {
        double found = 0.0;
        for (const GateCounts &gate : gates_) {
            found = std::max(found, value(gate));
        }
        return found;
    }
    double gates() const { return static_cast<double>(gates_.size()); }

private:
    std::vector<GateCounts> gates_;
};

using Metrics = std::vector<Metric>;

void add_kwta(Metrics &found, const Sums &s, const KwtaSettings &settings) {
    found.insert(found.end(), {{"kwta.gates", s.gates(), true},
                               {"kwta.calls", s.total(kwta_calls), true},
                               {"kwta.keep_ratio", s.share(kwta_kept, kwta_seen)},
                               {"kwta.duty_hits", s.total(duty_hits), true},
                               {"kwta.passes", s.share(kwta_passes, kwta_calls)},
                               {"kwta.temp", settings.temperature}});
    if (settings.gap_tol) {
        found.insert(found.end(),
                     {{"kwta.k", s.mean([](const GateCounts &gate) { return gate.keep; })},
                      {"kwta.duty", s.mean([](const GateCounts &gate) { return gate.duty; })},
                      {"kwta.gap_checks", s.total(kwta_checks), true},
                      {"kwta.tuned", s.total(kwta_tuned), true},
                      {"kwta.quality_gap", s.largest([](const GateCounts &gate) { return gate.kwta_gap; })}});
    }
}

void add_pack(Metrics &found, const Sums &s, const PackMlpSettings &settings) {
    found.insert(found.end(), {{"pack.enabled", s.gates(), true},
                               {"pack.mode", settings.ternary ? 2.0 : 1.0, true},
                               {"pack.calls", s.total(pack_tokens), true},
                               {"pack.density", s.share(pack_units, pack_seen)},
                               {"pack.active", s.share(pack_used, pack_tokens)},
                               {"pack.popcnt", s.total(pack_units), true},
                               {"pack.negative", s.total(pack_negative), true},
                               {"pack.switches", s.total(pack_switches), true},
                               {"pack.aggressive", s.total(pack_signs), true},
                               {"pack.gamma", s.mean([](const GateCounts &gate) { return gate.gamma; })}});
}

void add_zeros(Metrics &found, const Sums &s) {
    if (s.gates() > 0) {
        const double share = s.total(pack_seen) > 0 ? 1.0 - s.share(pack_units, pack_seen) : 0.0;
        found.insert(
            found.end(),
            {{"zeros.gates", s.gates(), true}, {"zeros.calls", s.total(pack_tokens), true}, {"zeros.share", share}});
    }
}

void add_event(Metrics &found, const Sums &s) {
    const double sent = s.share(event_sent, event_seen);
    found.insert(found.end(),
                 {{"event.enabled", s.gates(), true},
                  {"event.active", s.sum([](const GateCounts &gate) { return gate.event_active; }), true},
                  {"event.calls", s.total(event_calls), true},
                  {"event.full", s.total(event_full), true},
                  {"event.topk_kept", sent},
                  {"event.stale_pct", s.total(event_seen) > 0 ? 100.0 * (1.0 - sent) : 0.0},
                  {"event.forced", s.total(event_forced), true},
                  {"event.quorum_hits", s.total(event_quorum), true},
                  {"event.budget_hits", s.total(event_budget), true},
                  {"event.budget_ms_used", s.sum([](const GateCounts &gate) { return gate.event_ns; }) / 1e6},
                  {"event.gap_checks", s.total(event_checks), true},
                  {"event.gap_failures", s.total(event_failed), true},
                  {"event.quality_gap", s.largest([](const GateCounts &gate) { return gate.event_gap; })}});
}

} // namespace

GateCounts GateCounts::of(const Gate &gate) {
    GateCounts found;
    found.counts = gate.counters();
    const GateSpec &spec = gate.spec();
    found.kwta = spec.kwta.enabled;
    found.zeros = spec.pack.enabled && spec.pack.zeros;
    found.pack = spec.pack.enabled && !spec.pack.zeros;
    found.event = spec.event.enabled;
    const Gate::Published &now = gate.published();
    found.keep = now.keep.load();
    found.duty = now.duty.load();
    found.kwta_gap = now.kwta_gap.load();
    found.event_gap = now.gap.load();
    found.event_ns = now.event_ns.load();
    found.gamma = now.gamma.load();
    found.event_active = now.events_active.load();
    return found;
}

void GateCounts::add(const GateCounts &other) {
    const Counters<GateCount> before = counts;
    *this = other;
    counts += before;
}

std::vector<Metric> skipping_metrics(const SkipSettings &settings, const std::vector<GateCounts> &gates) {
    Metrics found;
    if (settings.kwta && settings.kwta->of_inputs()) {
        add_kwta(found, Sums(gates, &GateCounts::kwta), *settings.kwta);
    }
    if (settings.state_pack_mlp) {
        add_pack(found, Sums(gates, &GateCounts::pack), *settings.state_pack_mlp);
    }
    add_zeros(found, Sums(gates, &GateCounts::zeros));
    if (settings.event && settings.event->of_inputs()) {
        add_event(found, Sums(gates, &GateCounts::event));
    }
    return found;
}

} // namespace seeddelta
