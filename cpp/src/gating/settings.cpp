#include "gating/settings.hpp"

#include <algorithm>
#include <limits>
#include <stdexcept>

namespace seeddelta {

namespace {

constexpr double kAny = std::numeric_limits<double>::max();
constexpr int64_t kMostTokens = 1'000'000; // more make no difference

int tokens(const GivenSetting &given, int64_t least) {
    return static_cast<int>(std::min(given.whole(least), kMostTokens));
}

bool set_kwta(KwtaSettings &s, std::string_view name, const GivenSetting &given) {
    static constexpr Setter<KwtaSettings> kAll[] = {
        {"k", [](auto &s, auto &g) { s.k = g.values(0, 1, true); }},
        {"k_abs", [](auto &s, auto &g) { s.k_abs = g.whole(0); }},
        {"temperature", [](auto &s, auto &g) { s.temperature = g.number(0, kAny, false); }},
        {"duty", [](auto &s, auto &g) { s.duty = tokens(g, 1); }},
        {"target", [](auto &s, auto &g) { s.target = g.target(true); }},
        {"gap_tol", [](auto &s, auto &g) { s.gap_tol = g.number(0, kAny, true); }},
        {"gap_every", [](auto &s, auto &g) { s.gap_every = tokens(g, 1); }},
        {"block", [](auto &s, auto &g) { s.block = g.block(); }},
        {"score", [](auto &s, auto &g) { s.wina = g.choice({"magnitude", "wina"}) == 1; }},
        {"select", [](auto &s, auto &g) { s.threshold = g.choice({"topk", "threshold"}) == 1; }},
        {"renormalize", [](auto &s, auto &g) { s.renormalize = g.flag(); }},
        {"file", [](auto &s, auto &g) { s.file = SkipFile::read(g.text()); }},
    };
    return set_one(kAll, s, name, given);
}

bool set_pack(PackMlpSettings &s, std::string_view name, const GivenSetting &given) {
    static constexpr Setter<PackMlpSettings> kAll[] = {
        {"mode", [](auto &s, auto &g) { s.ternary = g.choice({"binary", "ternary"}) == 1; }},
        {"eps", [](auto &s, auto &g) { s.eps = g.values(0, kAny, false); }},
        {"relative", [](auto &s, auto &g) { s.relative = g.number(0, 1, false); }},
        {"rho", [](auto &s, auto &g) { s.rho = g.values(0, 1, false); }},
        {"hysteresis",
         [](auto &s, auto &g) {
             s.hysteresis = g.number(0, 1, false);
             if (s.hysteresis == 1.0) {
                 g.fail("must be below 1");
             }
         }},
        {"popcnt", [](auto &s, auto &g) { s.popcnt = g.flag(); }},
        {"target", [](auto &s, auto &g) { s.target = g.target(false); }},
        {"aggressive", [](auto &s, auto &g) { s.aggressive = g.flag(); }},
    };
    return set_one(kAll, s, name, given);
}

bool set_event(EventSettings &s, std::string_view name, const GivenSetting &given) {
    static constexpr Setter<EventSettings> kAll[] = {
        {"delta_theta", [](auto &s, auto &g) { s.delta_theta = g.values(0, kAny, false); }},
        {"topk", [](auto &s, auto &g) { s.topk = g.values(0, 1, true); }},
        {"block", [](auto &s, auto &g) { s.block = g.block(); }},
        {"quorum", [](auto &s, auto &g) { s.quorum = g.number(0, 1, true); }},
        {"budget_ms", [](auto &s, auto &g) { s.budget_ms = g.number(0, kAny, true); }},
        {"stale_beta", [](auto &s, auto &g) { s.stale_beta = g.number(0, kAny, false); }},
        {"stale_lambda", [](auto &s, auto &g) { s.stale_lambda = g.number(0, kAny, false); }},
        {"age_max", [](auto &s, auto &g) { s.age_max = tokens(g, 0); }},
        {"gap_tol", [](auto &s, auto &g) { s.gap_tol = g.number(0, kAny, false); }},
        {"gap_every", [](auto &s, auto &g) { s.gap_every = tokens(g, 0); }},
        {"rearm", [](auto &s, auto &g) { s.rearm = tokens(g, 0); }},
        {"target", [](auto &s, auto &g) { s.target = g.target(true); }},
    };
    return set_one(kAll, s, name, given);
}

void conflict(bool there, const char *what) {
    if (there) {
        throw std::invalid_argument(std::string(what) + "; leave one of the two out");
    }
}

void check_kwta(const KwtaSettings &s) {
    conflict(s.k && s.k_abs > 0, "kwta.k and kwta.k_abs both say how many units are kept");
    conflict(s.file && (s.k || s.k_abs > 0), "kwta.file has the fractions of kwta.k");
    conflict(s.threshold && !s.file, "kwta.select=threshold takes its thresholds from kwta.file");
    conflict(s.threshold && s.block > 1, "kwta.select=threshold is for single units, kwta.block for blocks");
    conflict(s.gap_tol && (s.k_abs > 0 || s.threshold), "kwta.gap_tol tunes the fraction kwta.k");
}

} // namespace

EventSpec EventSettings::made(double threshold, double most, double share) const {
    return {.enabled = true,
            .theta = static_cast<float>(threshold),
            .most = most,
            .quorum = static_cast<float>(quorum),
            .beta = static_cast<float>(stale_beta),
            .lambda = static_cast<float>(stale_lambda),
            .age_max = age_max,
            .budget_ns = budget_ms.value_or(0.0) * 1e6 * share,
            .gap_every = gap_every,
            .gap_tolerance = static_cast<float>(gap_tol),
            .rearm = rearm};
}

bool SkipSettings::set(std::string_view name, const std::string &value) {
    const GivenSetting given(name, value);
    const size_t dot = name.find('.');
    const std::string_view group = name.substr(0, dot);
    const std::string_view own = dot == std::string_view::npos ? std::string_view() : name.substr(dot + 1);
    if (group == "kwta") {
        return given.set_in(kwta, own, set_kwta);
    }
    if (group == "state_pack_mlp") {
        return given.set_in(state_pack_mlp, own, set_pack);
    }
    if (group == "event") {
        return given.set_in(event, own, set_event);
    }
    if (name == "zeros") {
        zeros = given.flag();
    } else if (name == "force") {
        force = given.flag();
    } else if (name == "skip_prompt") {
        skip_prompt = given.flag();
    } else {
        return false;
    }
    return true;
}

void SkipSettings::check() const {
    if (kwta) {
        check_kwta(*kwta);
    }
    conflict(state_pack_mlp && state_pack_mlp->aggressive && !state_pack_mlp->ternary,
             "state_pack_mlp.aggressive multiplies signs, which state_pack_mlp.mode=binary does not have");
    if (event && event->of_inputs()) {
        conflict(state_pack_mlp.has_value(), "event and state_pack_mlp both say which inputs are new");
        conflict(kwta && (kwta->block > 1 || kwta->renormalize || kwta->threshold),
                 "event takes how many inputs are kept from kwta, not its block, renormalize or thresholds");
        conflict(kwta && kwta->gap_tol, "event has a gap of its own beside kwta.gap_tol");
    }
}

} // namespace seeddelta
