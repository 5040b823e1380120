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
    if (name == "k") {
        s.k = given.values(0, 1, true);
    } else if (name == "k_abs") {
        s.k_abs = given.whole(0);
    } else if (name == "temperature") {
        s.temperature = given.number(0, kAny, false);
    } else if (name == "duty") {
        s.duty = tokens(given, 1);
    } else if (name == "target") {
        s.target = given.target(true);
    } else if (name == "gap_tol") {
        s.gap_tol = given.number(0, kAny, true);
    } else if (name == "gap_every") {
        s.gap_every = tokens(given, 1);
    } else if (name == "block") {
        s.block = given.block();
    } else if (name == "score") {
        s.wina = given.choice({"magnitude", "wina"}) == 1;
    } else if (name == "select") {
        s.threshold = given.choice({"topk", "threshold"}) == 1;
    } else if (name == "renormalize") {
        s.renormalize = given.flag();
    } else if (name == "file") {
        s.file = SkipFile::read(given.text());
    } else {
        return false;
    }
    return true;
}

bool set_pack(PackMlpSettings &s, std::string_view name, const GivenSetting &given) {
    if (name == "mode") {
        s.ternary = given.choice({"binary", "ternary"}) == 1;
    } else if (name == "eps") {
        s.eps = given.values(0, kAny, false);
    } else if (name == "relative") {
        s.relative = given.number(0, 1, false);
    } else if (name == "rho") {
        s.rho = given.values(0, 1, false);
    } else if (name == "hysteresis") {
        s.hysteresis = given.number(0, 1, false);
        if (s.hysteresis == 1.0) {
            given.fail("must be below 1");
        }
    } else if (name == "popcnt") {
        s.popcnt = given.flag();
    } else if (name == "target") {
        s.target = given.target(false);
    } else if (name == "aggressive") {
        s.aggressive = given.flag();
    } else {
        return false;
    }
    return true;
}

bool set_event(EventSettings &s, std::string_view name, const GivenSetting &given) {
    if (name == "delta_theta") {
        s.delta_theta = given.values(0, kAny, false);
    } else if (name == "topk") {
        s.topk = given.values(0, 1, true);
    } else if (name == "block") {
        s.block = given.block();
    } else if (name == "quorum") {
        s.quorum = given.number(0, 1, true);
    } else if (name == "budget_ms") {
        s.budget_ms = given.number(0, kAny, true);
    } else if (name == "stale_beta") {
        s.stale_beta = given.number(0, kAny, false);
    } else if (name == "stale_lambda") {
        s.stale_lambda = given.number(0, kAny, false);
    } else if (name == "age_max") {
        s.age_max = tokens(given, 0);
    } else if (name == "gap_tol") {
        s.gap_tol = given.number(0, kAny, false);
    } else if (name == "gap_every") {
        s.gap_every = tokens(given, 0);
    } else if (name == "rearm") {
        s.rearm = tokens(given, 0);
    } else if (name == "target") {
        s.target = given.target(true);
    } else {
        return false;
    }
    return true;
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
