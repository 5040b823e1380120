#include "gating/trial.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

namespace seeddelta {

namespace {

constexpr double kLeastSaving = 0.02; // of the time of a token
constexpr size_t kSamples = 32;       // of each kind in the first decision
constexpr int kWatchEvery = 256;      // tokens between those without the gate, later
constexpr size_t kWatched = 15;       // pairs of which the median decides, later

template <class Times>
double median(const Times &times) {
    std::vector<double> sorted(times.begin(), times.end());
    std::sort(sorted.begin(), sorted.end());
    const size_t half = sorted.size() / 2;
    return sorted.size() % 2 == 1 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}

std::string printed(const char *format, double value) {
    std::array<char, 32> text{};
    static_cast<void>(std::snprintf(text.data(), text.size(), format, value));
    return text.data();
}

} // namespace

bool Trial::without() const {
    if (!saving_) {
        return with_.size() / run_ > without_.size() / run_;
    }
    return since_ >= kWatchEvery && last_.has_value();
}

bool Trial::add(double seconds, bool without, bool worked) {
    if (!saving_) {
        if (without) {
            without_.push_back(seconds);
        } else if (worked) {
            with_.push_back(seconds);
        }
        if (std::min(with_.size(), without_.size()) < kSamples) {
            return false;
        }
        saving_ = 1.0 - median(with_) / median(without_);
        return true;
    }
    ++since_;
    if (!without) {
        last_ = worked ? std::optional(seconds) : last_;
        return false;
    }
    pairs_.push_back(last_.value_or(seconds) / seconds);
    if (pairs_.size() > kWatched) {
        pairs_.pop_front();
    }
    since_ = 0;
    if (pairs_.size() < kWatched) {
        return false;
    }
    saving_ = 1.0 - median(pairs_);
    return true;
}

bool Trial::pays() const {
    return !saving_ || *saving_ >= kLeastSaving;
}

std::pair<double, double> Trial::medians() const {
    return {median(with_), median(without_)};
}

Proof::Proof(std::vector<ProvenGate> gates) {
    for (ProvenGate &gate : gates) {
        const int run = gate.run;
        gates_.push_back({.gate = std::move(gate), .trial = Trial(run)});
    }
}

// The gate whose first trial is under way.
const Proof::One *Proof::first() const {
    const auto found = std::find_if(gates_.begin(), gates_.end(), [](const One &one) {
        return one.state == State::on && !one.trial.saving() && one.worked;
    });
    return found == gates_.end() ? nullptr : &*found;
}

// A gate's first trial begins when it works, and waits for that of the gate before it.
bool Proof::may_pause(const One &one) const {
    const One *trying = first();
    return one.state == State::on && (trying == &one || (trying == nullptr && one.trial.saving()));
}

void Proof::begin() {
    const auto found = std::find_if(gates_.begin(), gates_.end(),
                                    [&](const One &one) { return may_pause(one) && one.trial.without(); });
    if (found != gates_.end()) {
        paused_ = &*found;
        paused_->gate.pause(true);
    }
}

void Proof::cancel() {
    if (paused_ != nullptr) {
        paused_->gate.pause(false);
        paused_ = nullptr;
    }
}

std::vector<std::string> Proof::end(double seconds) {
    std::vector<std::string> lines;
    if (paused_ != nullptr) {
        paused_->gate.pause(false);
    }
    for (One &one : gates_) {
        if (one.state == State::on) {
            settle(one, seconds, lines);
        }
    }
    paused_ = nullptr;
    return lines;
}

void Proof::settle(One &one, double seconds, std::vector<std::string> &lines) {
    const uint64_t count = one.gate.count();
    const bool worked = count > one.count;
    one.count = count;
    one.worked |= worked;
    if (const uint64_t places = one.gate.given_up(); places != one.given_up) {
        give_up(one, places, lines);
        if (one.state != State::on) {
            return;
        }
    }
    const bool measured = (one.trial.saving() || first() == &one) && (paused_ == nullptr || paused_ == &one);
    if (!measured || !one.trial.add(seconds, paused_ == &one, worked) || one.trial.pays()) {
        return;
    }
    const auto [with_it, without] = one.trial.medians();
    const double saving = *one.trial.saving();
    stop(one, State::no_saving,
         one.gate.name + ": switched off, since it " + (saving >= 0 ? "saves " : "costs ") +
             printed("%.1f", 100 * std::abs(saving)) + "% of a token's time and should save " +
             printed("%.0f", 100 * kLeastSaving) + "% (first medians: " + printed("%.3g", 1000 * with_it) +
             " ms with it, " + printed("%.3g", 1000 * without) + " ms without); --force keeps it on",
         lines);
}

void Proof::give_up(One &one, uint64_t places, std::vector<std::string> &lines) {
    const uint64_t all = one.gate.places();
    const bool known = one.given_up > 0;
    one.given_up = places;
    const std::string text = one.gate.name + ": switched off in " + std::to_string(places) + " of " +
                             std::to_string(all) + " places, whose error is beyond the tolerance";
    if (places >= all) {
        stop(one, State::gap, text + "; " + one.gate.remedy, lines);
        return;
    }
    one.reason = text;
    if (!known) {
        lines.push_back(text + " (so far); " + one.gate.remedy);
    }
}

void Proof::stop(One &one, State state, const std::string &reason, std::vector<std::string> &lines) {
    one.gate.pause(true);
    one.state = state;
    one.reason = reason;
    lines.push_back(reason);
}

std::vector<Metric> Proof::metrics() const {
    std::vector<Metric> found;
    for (const One &one : gates_) {
        const std::string &key = one.gate.key;
        found.insert(found.end(), {{key + ".off", static_cast<double>(one.state), true},
                                   {key + ".off_places", static_cast<double>(one.gate.given_up()), true},
                                   {key + ".saving", one.trial.saving().value_or(0.0)},
                                   {key + ".trial_tokens", static_cast<double>(one.trial.tokens()), true}});
    }
    return found;
}

std::vector<std::pair<std::string, std::string>> Proof::reasons() const {
    std::vector<std::pair<std::string, std::string>> found;
    for (const One &one : gates_) {
        if (!one.reason.empty()) {
            found.emplace_back(one.gate.key, one.reason);
        }
    }
    return found;
}

} // namespace seeddelta
