// Whether skipping pays: each kind of gate is measured while a model generates, and switched off when it does not.
//
// Tokens with and without the gate alternate until there are 32 of each; then one in 256 is computed without it. What
// is timed is the graph of a single token. A prompt and a batch of several sequences are neither measured nor changed.
#pragma once
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "gating/counts.hpp"

namespace seeddelta {

inline constexpr int kEventRun = 8; // tokens of one kind in a row for events: the first after a pause is computed whole

// Times of tokens with and without one gate, and what they say. Times in seconds.
class Trial {
public:
    // `run` tokens of one kind follow each other.
    explicit Trial(int run = 1) : run_(static_cast<size_t>(run)) {}

    // Whether the next token is to be computed without the gate.
    bool without() const;
    // One token, and whether the gate chose for it. Returns whether there is a new decision: see saving().
    bool add(double seconds, bool without, bool worked);
    // Share of a token's time, of the last decision.
    const std::optional<double> &saving() const { return saving_; }
    // Whether it saves enough, or nothing is known yet.
    bool pays() const;
    // Of the first decision: with and without the gate.
    std::pair<double, double> medians() const;
    // Of the first decision so far.
    size_t tokens() const { return with_.size() + without_.size(); }

private:
    size_t run_;
    std::vector<double> with_, without_;
    std::deque<double> pairs_;
    int since_ = 0;
    std::optional<double> last_, saving_;
};

// One kind of gate, of all matrices or layers together.
struct ProvenGate {
    std::string key;                    // what its metrics begin with
    std::string name;                   // what people are told
    std::function<uint64_t()> count;    // of what it has chosen for, since loading
    std::function<void(bool)> pause;    // leaves it out, or not, from the next token on
    std::function<uint64_t()> given_up; // places whose errors have switched them off
    std::function<uint64_t()> places;   // of how many
    int run = 1;
    std::string remedy = "--force keeps it on";
};

// The trials of a context's gates, one after the other: those that are on meanwhile stay on.
class Proof {
public:
    explicit Proof(std::vector<ProvenGate> gates);

    bool any() const { return !gates_.empty(); }
    // Before a token is computed alone.
    void begin();
    // After it; returns lines for people.
    std::vector<std::string> end(double seconds);
    // Where it could not be computed.
    void cancel();

    // Of each gate X.off (0: on, 1: it saves too little, 2: its errors are too large), X.off_places (where its error
    // was too large), X.saving (share of a token's time, 0 until it is known) and X.trial_tokens.
    std::vector<Metric> metrics() const;
    // Why gates were switched off, by key.
    std::vector<std::pair<std::string, std::string>> reasons() const;

private:
    enum State : int { on = 0, no_saving = 1, gap = 2 };
    struct One {
        ProvenGate gate;
        Trial trial;
        uint64_t count = 0, given_up = 0;
        bool worked = false; // once
        State state = State::on;
        std::string reason;
    };
    const One *first() const;
    bool may_pause(const One &one) const;
    void settle(One &one, double seconds, std::vector<std::string> &lines);
    void give_up(One &one, uint64_t places, std::vector<std::string> &lines);
    void stop(One &one, State state, const std::string &reason, std::vector<std::string> &lines);

    std::deque<One> gates_;
    One *paused_ = nullptr;
};

} // namespace seeddelta
