#include "attention/settings.hpp"

#include <limits>
#include <regex>
#include <set>
#include <stdexcept>

namespace seeddelta {

namespace {

constexpr double kAny = std::numeric_limits<double>::max();

float real(const GivenSetting &given, double most, bool open) {
    return static_cast<float>(given.number(0, most, open));
}

LayerOverride override_of(const std::string &part, float budget) {
    static const std::regex form(
        R"((\d{1,9})(?:-(\d{1,9}))?(?:\.(\d{1,9})(?:-(\d{1,9}))?)?=(none|exact|binary|ternary)(?::(.+))?)");
    std::smatch m;
    if (std::regex_match(part, m, form)) {
        const auto number = [&](size_t at, int64_t none) { return m[at].matched ? std::stoll(m[at]) : none; };
        const std::string mode = m[5];
        LayerOverride one{.first = number(1, 0),
                          .last = number(2, number(1, 0)),
                          .first_head = number(3, -1),
                          .last_head = number(4, number(3, -1)),
                          .mode = mode == "binary"    ? PackMode::binary
                                  : mode == "ternary" ? PackMode::ternary
                                                      : PackMode::exact,
                          .budget = budget};
        if (m[6].matched) {
            one.budget = static_cast<float>(GivenSetting("state_pack_kv.layers", m[6]).number(0, kAny, true));
        }
        if (one.first <= one.last && one.first_head <= one.last_head) {
            return one;
        }
    }
    throw std::invalid_argument("state pack layers '" + part +
                                "' cannot be read; write for example 0-1=exact,12=ternary:0.25, or for KV heads of a "
                                "layer 12.0-1=exact");
}

// Heads of a layer are packed together.
void check_modes(const AttentionSettings &s) {
    const auto mode_of = [&](int64_t layer, int64_t head) {
        PackMode mode = s.pack.mode;
        for (const LayerOverride &one : s.layers) {
            const bool holds = one.first_head < 0 || (one.first_head <= head && head <= one.last_head);
            mode = one.first <= layer && layer <= one.last && holds ? one.mode : mode;
        }
        return mode;
    };
    std::set<int64_t> layers, heads = {0};
    for (const LayerOverride &one : s.layers) {
        layers.insert({one.first, one.last + 1});
        heads.insert({std::max<int64_t>(one.first_head, 0), one.last_head + 1});
    }
    for (const int64_t layer : layers) {
        std::set<PackMode> modes;
        for (const int64_t head : heads) {
            modes.insert(mode_of(layer, head));
        }
        if (modes.contains(PackMode::binary) && modes.contains(PackMode::ternary)) {
            const std::string number = std::to_string(layer);
            throw std::invalid_argument("state pack layers: KV heads of layer " + number +
                                        " have binary and ternary bits; those of a layer are exact or of one mode, "
                                        "which " +
                                        number + "=binary or " + number + "=ternary gives to all");
        }
    }
}

} // namespace

bool StatePackKv::set(StatePackKv &s, std::string_view name, const GivenSetting &given) {
    static constexpr Setter<StatePackKv> kAll[] = {
        {"mode",
         [](auto &s, auto &g) { s.pack_.mode = static_cast<PackMode>(g.choice({"exact", "binary", "ternary"})); }},
        {"eps", [](auto &s, auto &g) { s.pack_.eps = real(g, kAny, false); }},
        {"popcount", [](auto &s, auto &g) { s.pack_.popcount = g.flag(); }},
        {"refine", [](auto &s, auto &g) { s.pack_.refine = g.flag(); }},
        {"budget", [](auto &s, auto &g) { s.pack_.budget = real(g, kAny, true); }},
        {"mass", [](auto &s, auto &g) { s.pack_.mass = real(g, 1, false); }},
        {"sinks", [](auto &s, auto &g) { s.pack_.sinks = g.whole(0); }},
        {"recent", [](auto &s, auto &g) { s.pack_.recent = g.whole(0); }},
        {"layers", [](auto &s, auto &g) { s.layers_ = g.text(); }},
        {"min_context", [](auto &s, auto &g) { s.min_context_ = g.whole(0); }},
        {"density", [](auto &s, auto &g) { s.pack_.density = real(g, 1, true); }},
        {"negligible", [](auto &s, auto &g) { s.pack_.negligible = real(g, 1, false); }},
        {"gap", [](auto &s, auto &g) { s.gap_limit_ = real(g, kAny, true); }},
        {"gap_every", [](auto &s, auto &g) { s.gap_every_ = g.whole(0); }},
        {"gamma_chunk", [](auto &s, auto &g) { s.pack_.gamma_chunk = g.whole(0); }},
        {"gamma_cap", [](auto &s, auto &g) { s.pack_.gamma_cap = real(g, kAny, true); }},
        {"audits", [](auto &s, auto &g) { s.pack_.audits = g.whole(0); }},
    };
    return set_one(kAll, s, name, given);
}

AttentionSettings StatePackKv::made(std::optional<double> budget) const {
    AttentionSettings found{.pack = pack_,
                            .layers = {},
                            .min_context = min_context_,
                            .gap_every = gap_every_,
                            .gap_limit = gap_limit_,
                            .event = {}};
    found.pack.budget = budget ? static_cast<float>(*budget) : pack_.budget;
    for (const std::string &part : GivenSetting("state_pack_kv.layers", layers_).list()) {
        found.layers.push_back(override_of(part, found.pack.budget));
    }
    check_modes(found);
    return found;
}

} // namespace seeddelta
