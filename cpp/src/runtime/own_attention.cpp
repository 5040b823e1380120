#include "runtime/own_attention.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>

namespace seeddelta {

namespace {

// By the names of metrics.
constexpr const char *kNodeNames[] = {"nodes", "exact", "prompts", "left"};
constexpr const char *kPackNames[] = {"",        "visible",  "kept",  "scored",   "values",  "dense",
                                      "repacks", "rebuilds", "stale", "compared", "disabled"};

Metric whole(std::string name, uint64_t value) {
    return {std::move(name), static_cast<double>(value), true};
}

double share(double part, double all, double none) {
    return all > 0 ? part / all : none;
}

void add_pack(std::vector<Metric> &found, const AttentionTotals &t, const std::string &prefix) {
    const PackSettings &pack = t.settings->pack;
    using enum PackCount;
    const auto count = [&](PackCount of) { return static_cast<double>(t.pack[of]); };
    uint64_t own = 0, exact = 0;
    for (const HeadTotal &head : t.now.heads) {
        exact += head.exact ? 1 : 0;
        own += head.exact || std::fabs(head.budget - pack.budget) > 1e-6F * pack.budget ? 1 : 0;
    }
    found.insert(found.end(), {whole(prefix + "enabled", pack.mode == PackMode::exact ? 0 : 1),
                               whole(prefix + "mode", static_cast<uint64_t>(pack.mode)),
                               {prefix + "density", share(count(kept), count(visible), 1.0)},
                               whole(prefix + "active", static_cast<uint64_t>(t.now.packed_layers)),
                               {prefix + "recall", share(t.recall_sum, count(compared), 1.0)},
                               {prefix + "gap", share(t.gap_sum, count(compared), 0.0)},
                               whole(prefix + "popcnt", t.pack[popcount]),
                               whole(prefix + "heads", t.now.heads.size()),
                               whole(prefix + "heads_own", own),
                               whole(prefix + "heads_exact", exact)});
    for (size_t i = 1; i < std::size(kPackNames); ++i) {
        found.push_back(whole(prefix + kPackNames[i], t.pack.at(i)));
    }
    found.push_back(whole(prefix + "bytes", static_cast<uint64_t>(t.now.pack_bytes)));
}

void add_events(std::vector<Metric> &found, const AttentionTotals &t) {
    using enum EventCount;
    const EventCounters &e = t.events;
    const auto of = [](uint64_t value) { return static_cast<double>(value); };
    const uint64_t reused = e[seen] - e[sent], windows = e[seen] + e[given];
    found.insert(found.end(), {whole("attention.events", e[attended]),
                               whole("event.enabled", static_cast<uint64_t>(t.now.event_layers)),
                               whole("event.active", static_cast<uint64_t>(t.now.event_active)),
                               whole("event.calls", e[operations]),
                               whole("event.full", e[full]),
                               whole("event.windows", windows),
                               whole("event.windows_reused", reused),
                               whole("event.heads", e[heads]),
                               whole("event.heads_computed", e[heads] - e[idle]),
                               {"event.topk_kept", reused > 0 ? of(e[sent]) / of(e[seen]) : 1.0},
                               {"event.stale_pct", share(100.0 * of(reused), of(windows), 0.0)},
                               {"event.age", share(of(e[ages]), of(reused), 0.0)},
                               whole("event.forced", e[forced]),
                               whole("event.quorum_hits", e[quorum]),
                               whole("event.budget_hits", e[budget]),
                               {"event.budget_ms_used", t.now.event_ns / 1e6},
                               whole("event.gap_checks", e[checks]),
                               whole("event.gap_failures", e[failed]),
                               {"event.quality_gap", static_cast<double>(t.now.event_gap)},
                               whole("event.resets", e[resets]),
                               whole("event.wrong", e[wrong]),
                               whole("event.bytes", static_cast<uint64_t>(t.now.event_bytes))});
}

} // namespace

OwnAttention::OwnAttention(const LoadedGgml &ggml, const Options &options)
    : hook_(ggml.abi(), ggml.attention(), options.attention_settings()), must_(options.asks_for_attention()) {}

std::string OwnAttention::wrong(bool &settings) {
    settings = false;
    if (hook_.in_pieces()) {
        return "a graph was computed in pieces, with the attention of a token in two of them; use attention=llama";
    }
    if (proven_) {
        return {};
    }
    if (const auto [layer, head] = hook_.missing_head(); layer >= 0) {
        settings = true;
        return "state pack layers: layer " + std::to_string(layer) + " has no KV head " + std::to_string(head) +
               " (they count from 0)";
    }
    const Counters<AttentionCount> &c = hook_.counters();
    if (automatic()) {
        return {};
    }
    if (c[AttentionCount::left] > 0 && c[AttentionCount::nodes] == 0) {
        return must_ + ": attention of this model cannot be taken over: " + hook_.left_because();
    }
    const SelectorTotals &totals = hook_.totals();
    if (c[AttentionCount::exact] + totals.pack[PackCount::operations] + totals.event[EventCount::attended] > 0) {
        const bool packs = hook_.report().packed_layers > 0 || totals.pack[PackCount::disabled] > 0;
        if (hook_.settings().pack.mode != PackMode::exact && !packs) {
            return "no layer has a cache of keys that can be packed; see the option for layers";
        }
        proven_ = true;
    }
    return {};
}

void AttentionTotals::add(const AttentionHook &hook) {
    nodes += hook.counters();
    pack += hook.totals().pack;
    events += hook.totals().event;
    const auto [gap, recall] = hook.gap_and_recall_sum();
    gap_sum += gap;
    recall_sum += recall;
    now = hook.report();
    settings = hook.settings();
}

std::vector<Metric> AttentionTotals::metrics(bool of_both) const {
    std::vector<Metric> found;
    if (!settings) {
        return found;
    }
    for (size_t i = 0; i < std::size(kNodeNames); ++i) {
        found.push_back(whole(std::string("attention.") + kNodeNames[i], nodes.at(i)));
    }
    found.push_back(whole("attention.packed", pack[PackCount::operations]));
    if (settings->chooses_keys() || settings->event.enabled) {
        add_pack(found, *this, of_both ? "pack.kv." : "pack.");
    }
    if (settings->event.enabled) {
        add_events(found, *this);
    }
    return found;
}

} // namespace seeddelta
