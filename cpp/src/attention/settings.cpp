#include "attention/settings.hpp"

#include <limits>
#include <regex>
#include <set>
#include <stdexcept>

namespace seeddelta {

namespace {

constexpr double kAny = std::numeric_limits<double>::max();

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
    const auto number = [&](double least, double most, bool open) {
        return static_cast<float>(given.number(least, most, open));
    };
    if (name == "mode") {
        s.pack_.mode = static_cast<PackMode>(given.choice({"exact", "binary", "ternary"}));
    } else if (name == "eps") {
        s.pack_.eps = number(0, kAny, false);
    } else if (name == "popcount") {
        s.pack_.popcount = given.flag();
    } else if (name == "refine") {
        s.pack_.refine = given.flag();
    } else if (name == "budget") {
        s.pack_.budget = number(0, kAny, true);
    } else if (name == "mass") {
        s.pack_.mass = number(0, 1, false);
    } else if (name == "sinks") {
        s.pack_.sinks = given.whole(0);
    } else if (name == "recent") {
        s.pack_.recent = given.whole(0);
    } else if (name == "layers") {
        s.layers_ = given.text();
    } else if (name == "min_context") {
        s.min_context_ = given.whole(0);
    } else if (name == "density") {
        s.pack_.density = number(0, 1, true);
    } else if (name == "negligible") {
        s.pack_.negligible = number(0, 1, false);
    } else if (name == "gap") {
        s.gap_limit_ = number(0, kAny, true);
    } else if (name == "gap_every") {
        s.gap_every_ = given.whole(0);
    } else if (name == "gamma_chunk") {
        s.pack_.gamma_chunk = given.whole(0);
    } else if (name == "gamma_cap") {
        s.pack_.gamma_cap = number(0, kAny, true);
    } else if (name == "audits") {
        s.pack_.audits = given.whole(0);
    } else {
        return false;
    }
    return true;
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
