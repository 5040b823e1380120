#include "gating/counts.hpp"

#include <algorithm>
#include <functional>

namespace seeddelta {

namespace {

using Member = std::atomic<uint64_t> GateCounters::*;
struct Counted {
    const char *name;
    Member member;
};

// The order of GateCount.
constexpr Counted kCounted[kGateCounts] = {
    {"kwta_calls", &GateCounters::kwta_calls},       {"kwta_kept", &GateCounters::kwta_kept},
    {"kwta_seen", &GateCounters::kwta_seen},         {"kwta_passes", &GateCounters::kwta_passes},
    {"duty_hits", &GateCounters::duty_hits},         {"kwta_checks", &GateCounters::kwta_checks},
    {"kwta_tuned", &GateCounters::kwta_tuned},       {"pack_tokens", &GateCounters::pack_tokens},
    {"pack_used", &GateCounters::pack_used},         {"pack_units", &GateCounters::pack_units},
    {"pack_negative", &GateCounters::pack_negative}, {"pack_seen", &GateCounters::pack_seen},
    {"pack_switches", &GateCounters::pack_switches}, {"pack_signs", &GateCounters::pack_signs},
    {"event_calls", &GateCounters::event_calls},     {"event_full", &GateCounters::event_full},
    {"event_sent", &GateCounters::event_sent},       {"event_seen", &GateCounters::event_seen},
    {"event_forced", &GateCounters::event_forced},   {"event_quorum", &GateCounters::event_quorum},
    {"event_budget", &GateCounters::event_budget},   {"event_checks", &GateCounters::event_checks},
    {"event_failed", &GateCounters::event_failed},
};

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
                               {"kwta.calls", s.total(kKwtaCalls), true},
                               {"kwta.keep_ratio", s.share(kKwtaKept, kKwtaSeen)},
                               {"kwta.duty_hits", s.total(kDutyHits), true},
                               {"kwta.passes", s.share(kKwtaPasses, kKwtaCalls)},
                               {"kwta.temp", settings.temperature}});
    if (settings.gap_tol) {
        found.insert(found.end(),
                     {{"kwta.k", s.mean([](const GateCounts &gate) { return gate.keep; })},
                      {"kwta.duty", s.mean([](const GateCounts &gate) { return gate.duty; })},
                      {"kwta.gap_checks", s.total(kKwtaChecks), true},
                      {"kwta.tuned", s.total(kKwtaTuned), true},
                      {"kwta.quality_gap", s.largest([](const GateCounts &gate) { return gate.kwta_gap; })}});
    }
}

void add_pack(Metrics &found, const Sums &s, const PackMlpSettings &settings) {
    found.insert(found.end(), {{"pack.enabled", s.gates(), true},
                               {"pack.mode", settings.ternary ? 2.0 : 1.0, true},
                               {"pack.calls", s.total(kPackTokens), true},
                               {"pack.density", s.share(kPackUnits, kPackSeen)},
                               {"pack.active", s.share(kPackUsed, kPackTokens)},
                               {"pack.popcnt", s.total(kPackUnits), true},
                               {"pack.negative", s.total(kPackNegative), true},
                               {"pack.switches", s.total(kPackSwitches), true},
                               {"pack.aggressive", s.total(kPackSigns), true},
                               {"pack.gamma", s.mean([](const GateCounts &gate) { return gate.gamma; })}});
}

void add_zeros(Metrics &found, const Sums &s) {
    if (s.gates() > 0) {
        const double share = s.total(kPackSeen) > 0 ? 1.0 - s.share(kPackUnits, kPackSeen) : 0.0;
        found.insert(
            found.end(),
            {{"zeros.gates", s.gates(), true}, {"zeros.calls", s.total(kPackTokens), true}, {"zeros.share", share}});
    }
}

void add_event(Metrics &found, const Sums &s) {
    const double sent = s.share(kEventSent, kEventSeen);
    found.insert(found.end(),
                 {{"event.enabled", s.gates(), true},
                  {"event.active", s.sum([](const GateCounts &gate) { return gate.event_active; }), true},
                  {"event.calls", s.total(kEventCalls), true},
                  {"event.full", s.total(kEventFull), true},
                  {"event.topk_kept", sent},
                  {"event.stale_pct", s.total(kEventSeen) > 0 ? 100.0 * (1.0 - sent) : 0.0},
                  {"event.forced", s.total(kEventForced), true},
                  {"event.quorum_hits", s.total(kEventQuorum), true},
                  {"event.budget_hits", s.total(kEventBudget), true},
                  {"event.budget_ms_used", s.sum([](const GateCounts &gate) { return gate.event_ns; }) / 1e6},
                  {"event.gap_checks", s.total(kEventChecks), true},
                  {"event.gap_failures", s.total(kEventFailed), true},
                  {"event.quality_gap", s.largest([](const GateCounts &gate) { return gate.event_gap; })}});
}

} // namespace

GateCounts GateCounts::of(const Gate &gate) {
    GateCounts found;
    for (size_t i = 0; i < kGateCounts; ++i) {
        found.counts[i] = (gate.counters().*kCounted[i].member).load();
    }
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
    found.event_given_up = now.given_up.load();
    found.pack_active = now.pack_active.load();
    return found;
}

void GateCounts::add(const GateCounts &other) {
    const auto before = counts;
    *this = other;
    std::transform(counts.begin(), counts.end(), before.begin(), counts.begin(), std::plus<>());
}

std::vector<std::pair<std::string, double>> named(const GateCounts &gate) {
    std::vector<std::pair<std::string, double>> found;
    for (size_t i = 0; i < kGateCounts; ++i) {
        found.emplace_back(kCounted[i].name, static_cast<double>(gate.counts[i]));
    }
    found.insert(found.end(), {{"pack_zeros", gate.zeros ? 1.0 : 0.0},
                               {"pack_active", gate.pack_active ? 1.0 : 0.0},
                               {"pack_gamma", gate.gamma},
                               {"kwta_gap", gate.kwta_gap},
                               {"keep", gate.keep},
                               {"duty", gate.duty},
                               {"event_gap", gate.event_gap},
                               {"event_ns", gate.event_ns},
                               {"event_active", gate.event_active ? 1.0 : 0.0},
                               {"event_given_up", gate.event_given_up ? 1.0 : 0.0}});
    return found;
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
