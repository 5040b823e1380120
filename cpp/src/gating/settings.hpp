// Settings of KWTA, StatePack of the MLP and events, in the names of the tree in python/seeddelta/settings/skipping.py,
// which says what each of them does.
#pragma once
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "gating/event.hpp"
#include "gating/patterns.hpp"
#include "gating/skip_file.hpp"

namespace seeddelta {

struct KwtaSettings {
    std::optional<Values> k;
    int64_t k_abs = 0;
    double temperature = 0.0;
    int duty = 1;
    Target target = Target::both;
    std::optional<double> gap_tol;
    int gap_every = 32;
    int block = 1;
    bool wina = true;       // score
    bool threshold = false; // select
    bool renormalize = false;
    std::optional<SkipFile> file;

    bool of_inputs() const { return target != Target::kv; }
};

struct PackMlpSettings {
    bool ternary = false; // mode
    Values eps = {{"*", 1e-4}};
    double relative = 0.0;
    Values rho = {{"*", 0.15}};
    double hysteresis = 0.1;
    bool popcnt = true;
    Target target = Target::mlp;
    bool aggressive = false;
};

struct EventSettings {
    std::optional<Values> delta_theta;
    Values topk = {{"*", 1.0}};
    int block = 1;
    double quorum = 1.0;
    std::optional<double> budget_ms;
    double stale_beta = 1.0;
    double stale_lambda = 0.02;
    int age_max = 64;
    double gap_tol = 0.05;
    int gap_every = 32;
    int rearm = 128;
    Target target = Target::mlp;

    bool of_inputs() const { return target != Target::kv; }
    Values theta() const { return delta_theta.value_or(Values{{"*", of_inputs() ? 0.15 : 0.01}}); }
    // Of a place with these values, which has a share of the budget. Of single inputs, without early checks.
    EventSpec made(double threshold, double most, double share) const;
};

struct SkipSettings {
    std::optional<KwtaSettings> kwta;
    std::optional<PackMlpSettings> state_pack_mlp;
    std::optional<EventSettings> event;
    bool zeros = true;
    bool force = false;
    bool skip_prompt = false;

    // One setting by its full name, such as event.delta_theta; a group alone takes on, off, {} and null. False when
    // there is no such name. Throws std::invalid_argument for a value that cannot be.
    bool set(std::string_view name, const std::string &value);
    // Throws std::invalid_argument for settings that contradict each other.
    void check() const;
    // Whether any input may be skipped, beside exact zeros.
    bool skips() const {
        return (kwta && kwta->of_inputs()) || state_pack_mlp.has_value() || (event && event->of_inputs());
    }
};

// The values of texts, which throw std::invalid_argument: `name`=`value`: what is wrong.
class GivenSetting {
public:
    GivenSetting(std::string_view name, std::string value) : name_(name), value_(std::move(value)) {}
    [[noreturn]] void fail(const std::string &what) const;
    const std::string &text() const { return value_; }
    double number() const;
    // At least (or, open, more than) `least`, and at most `most`.
    double number(double least, double most, bool open) const;
    int64_t whole(int64_t least) const;
    bool flag() const; // on or off
    int block() const; // 1, 16, 32 or 64
    size_t choice(std::initializer_list<std::string_view> choices) const;
    Target target(bool with_kv) const;
    // A number, or PATTERN=NUMBER with commas.
    Values values(double least, double most, bool open) const;
    Names list() const; // with commas

    // Sets one of a group of settings, by its own name; without one: the group is there or not.
    template <class S>
    bool set_in(std::optional<S> &group, std::string_view own,
                bool (*set)(S &, std::string_view, const GivenSetting &)) const {
        if (!own.empty()) {
            return set(group ? *group : group.emplace(), own, *this);
        }
        if (value_ == "null" || value_ == "off") {
            group.reset();
        } else if (value_ != "{}" && value_ != "on") {
            fail("write on or off");
        } else if (!group) {
            group.emplace();
        }
        return true;
    }

private:
    double parse(const std::string &text) const;
    double in_range(double found, double least, double most, bool open) const;
    std::string name_, value_;
};

// One setting of a group.
template <class S>
struct Setter {
    std::string_view name;
    void (*set)(S &group, const GivenSetting &given);
};

// Sets the one of this name; false when there is none.
template <class S, size_t n>
bool set_one(const Setter<S> (&setters)[n], S &group, std::string_view name, const GivenSetting &given) {
    const auto *found = std::find_if(setters, setters + n, [&](const Setter<S> &one) { return one.name == name; });
    if (found != setters + n) {
        found->set(group, given);
    }
    return found != setters + n;
}

} // namespace seeddelta
