#include "runtime/own_attention.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>

namespace seeddelta {

namespace {

using Counter = std::atomic<uint64_t>;

enum NodeCount : size_t { kNodes, kExact, kPrompts, kLeft };
constexpr Counter AttentionCounters::*kNodeCounts[] = {&AttentionCounters::nodes, &AttentionCounters::exact,
                                                       &AttentionCounters::prompts, &AttentionCounters::left};
constexpr const char *kNodeNames[] = {"nodes", "exact", "prompts", "left"};

enum PackCount : size_t {
    kPacked,
    kVisible,
    kKept,
    kScored,
    kValues,
    kDense,
    kRepacks,
    kRebuilds,
    kStale,
    kCompared,
    kDisabled,
    kPopcount,
}; // clang-format off
constexpr Counter PackCounters::*kPackCounts[] = {
    &PackCounters::operations, &PackCounters::visible, &PackCounters::kept, &PackCounters::scored,
    &PackCounters::values, &PackCounters::dense, &PackCounters::repacks, &PackCounters::rebuilds,
    &PackCounters::stale, &PackCounters::compared, &PackCounters::disabled, &PackCounters::popcount};
constexpr const char *kPackNames[] = {"", "visible", "kept", "scored", "values", "dense", "repacks", "rebuilds",
                                      "stale", "compared", "disabled"};

enum EventCount : size_t {
    kCalls, kFull, kGiven, kSeen, kSent, kForced, kAges, kQuorum, kBudget, kHeads, kIdle, kChecks, kFailed, kResets,
    kWrong, kOperations,
};
constexpr Counter EventCounters::*kEventCounts[] = {
    &EventCounters::operations, &EventCounters::full, &EventCounters::given, &EventCounters::seen,
    &EventCounters::sent, &EventCounters::forced, &EventCounters::ages, &EventCounters::quorum,
    &EventCounters::budget, &EventCounters::heads, &EventCounters::idle, &EventCounters::checks,
    &EventCounters::failed, &EventCounters::resets, &EventCounters::wrong};
// clang-format on

template <class Counters, size_t n, size_t total>
void add_all(std::array<uint64_t, total> &to, const Counters &from, Counter Counters::*const (&members)[n]) {
    for (size_t i = 0; i < n; ++i) {
        to[i] += (from.*members[i]).load();
    }
}

Metric whole(std::string name, uint64_t value) {
    return {std::move(name), static_cast<double>(value), true};
}

double share(double part, double all, double none) {
    return all > 0 ? part / all : none;
}

void add_pack(std::vector<Metric> &found, const AttentionTotals &t, const std::string &prefix) {
    const PackSettings &pack = t.settings->pack;
    const auto count = [&](PackCount number) { return static_cast<double>(t.pack[number]); };
    uint64_t own = 0, exact = 0;
    for (const HeadTotal &head : t.now.heads) {
        exact += head.exact ? 1 : 0;
        own += head.exact || std::fabs(head.budget - pack.budget) > 1e-6F * pack.budget ? 1 : 0;
    }
    found.insert(found.end(), {whole(prefix + "enabled", pack.mode == PackMode::exact ? 0 : 1),
                               whole(prefix + "mode", static_cast<uint64_t>(pack.mode)),
                               {prefix + "density", share(count(kKept), count(kVisible), 1.0)},
                               whole(prefix + "active", static_cast<uint64_t>(t.now.packed_layers)),
                               {prefix + "recall", share(t.recall_sum, count(kCompared), 1.0)},
                               {prefix + "gap", share(t.gap_sum, count(kCompared), 0.0)},
                               whole(prefix + "popcnt", t.pack[kPopcount]),
                               whole(prefix + "heads", t.now.heads.size()),
                               whole(prefix + "heads_own", own),
                               whole(prefix + "heads_exact", exact)});
    for (size_t i = kVisible; i <= kDisabled; ++i) {
        found.push_back(whole(prefix + kPackNames[i], t.pack[i]));
    }
    found.push_back(whole(prefix + "bytes", static_cast<uint64_t>(t.now.pack_bytes)));
}

void add_events(std::vector<Metric> &found, const AttentionTotals &t) {
    const auto &e = t.events;
    const auto of = [](uint64_t value) { return static_cast<double>(value); };
    const uint64_t reused = e[kSeen] - e[kSent], windows = e[kSeen] + e[kGiven];
    found.insert(found.end(), {whole("attention.events", e[kOperations]),
                               whole("event.enabled", static_cast<uint64_t>(t.now.event_layers)),
                               whole("event.active", static_cast<uint64_t>(t.now.event_active)),
                               whole("event.calls", e[kCalls]),
                               whole("event.full", e[kFull]),
                               whole("event.windows", windows),
                               whole("event.windows_reused", reused),
                               whole("event.heads", e[kHeads]),
                               whole("event.heads_computed", e[kHeads] - e[kIdle]),
                               {"event.topk_kept", reused > 0 ? of(e[kSent]) / of(e[kSeen]) : 1.0},
                               {"event.stale_pct", share(100.0 * of(reused), of(windows), 0.0)},
                               {"event.age", share(of(e[kAges]), of(reused), 0.0)},
                               whole("event.forced", e[kForced]),
                               whole("event.quorum_hits", e[kQuorum]),
                               whole("event.budget_hits", e[kBudget]),
                               {"event.budget_ms_used", t.now.event_ns / 1e6},
                               whole("event.gap_checks", e[kChecks]),
                               whole("event.gap_failures", e[kFailed]),
                               {"event.quality_gap", static_cast<double>(t.now.event_gap)},
                               whole("event.resets", e[kResets]),
                               whole("event.wrong", e[kWrong]),
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
    const AttentionCounters &c = hook_.counters();
    if (automatic()) {
        return {};
    }
    if (c.left.load() > 0 && c.nodes.load() == 0) {
        return must_ + ": attention of this model cannot be taken over: " + hook_.left_because();
    }
    const SelectorTotals &totals = hook_.totals();
    if (c.exact.load() + totals.pack.operations.load() + totals.event_operations.load() > 0) {
        const bool packs = hook_.report().packed_layers > 0 || totals.pack.disabled.load() > 0;
        if (hook_.settings().pack.mode != PackMode::exact && !packs) {
            return "no layer has a cache of keys that can be packed; see the option for layers";
        }
        proven_ = true;
    }
    return {};
}

void AttentionTotals::add(const AttentionHook &hook) {
    add_all(nodes, hook.counters(), kNodeCounts);
    add_all(pack, hook.totals().pack, kPackCounts);
    add_all(events, hook.totals().event, kEventCounts);
    events[kOperations] += hook.totals().event_operations.load();
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
        found.push_back(whole(std::string("attention.") + kNodeNames[i], nodes[i]));
    }
    found.push_back(whole("attention.packed", pack[kPacked]));
    if (settings->chooses_keys() || settings->event.enabled) {
        add_pack(found, *this, of_both ? "pack.kv." : "pack.");
    }
    if (settings->event.enabled) {
        add_events(found, *this);
    }
    return found;
}

} // namespace seeddelta
