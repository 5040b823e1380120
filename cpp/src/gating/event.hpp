// Event-driven inputs: a unit is sent when it has changed enough since it was last sent. y = W x^, where x^ has the
// values last sent, so that a budget which is used up means stale inputs, never a wrong product.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace seeddelta {

struct EventSpec {
    bool enabled = false;
    float theta = 0.3F;  // change that is sent, in multiples of the root mean square of the scores
    double most = 1.0;   // largest fraction of the units that a token sends
    float quorum = 1.0F; // the largest changes are sent until they have this share of the energy of all changes
    float beta = 1.0F;   // the threshold of a unit of age a is theta * beta * exp(-lambda * a)
    float lambda = 0.02F;
    int age_max = 64;           // tokens after which a unit is sent whatever its change
    double budget_ns = 0.0;     // time for the products of one token here; 0: any
    int gap_every = 32;         // tokens between comparisons with the full product
    float gap_tolerance = 0.3F; // |y - y_full| / |y_full| above which every token is computed whole
    int rearm = 128;            // tokens until changes are sent again
    int early_checks = 0;       // a failure in so many first checked tokens is one for good; they come early
    int block = 1;              // neighboring inputs that are one unit: 1, 16, 32 or 64
};

enum class EventMode : uint8_t {
    full,  // all inputs: y is the state from here on
    delta, // changes: they are added to the state
    check, // changes, and then all inputs to compare with, which become the state
};

struct EventChoice {
    EventMode mode = EventMode::full;
    int64_t sent = 0;    // units; of EventState: inputs
    int64_t forced = 0;  // by their age
    bool quorum = false; // the quorum left some out
    bool budget = false; // the budget did
};

// Which changes are sent, of inputs of a matrix or of windows of attention: ages, limits, checks and the time of it.
class EventLimits {
public:
    // n: the largest number of units.
    EventLimits(const EventSpec &spec, int64_t n);

    // Starts a token. True when all n units are to be computed whole, because their state is not known or a gap was
    // too large.
    bool whole(int64_t n);
    // After whole() gave false: which of n units are sent, ascending, in `index`. score [n]: the changes' float bits,
    // or kGiven for a unit that is computed in any case; scratch after that. A change is sent when it is above
    // theta * unit, for its age; `most` is the number that may be sent.
    EventChoice choose(int32_t *score, int64_t n, float unit, int64_t most, double budget_ns, int32_t *index);
    static constexpr int32_t kGiven = INT32_MIN;

    // The state is not that of the products any more: a prompt or a failed product came between.
    void forget() { known_ = false; }
    // The next choice is checked, the one two tokens later, four after that, until it is every gap_every tokens.
    void check_soon() { check_after_ = 1; }
    // One gap in a check.
    void report_gap(float gap);
    // Time of computing what was sent.
    void report_time(double ns) { spent_ns_ += ns; }

    float gap() const { return gap_; }
    bool disabled() const { return pause_ > 0; }
    // One of the first checks failed: changes are never sent again.
    bool given_up() const { return given_up_; }
    int64_t pause() const { return pause_; }
    bool known() const { return known_; }
    double last_ns() const { return last_ns_; }
    int32_t age(int64_t unit) const { return age_[static_cast<size_t>(unit)]; }
    const EventSpec &spec() const { return spec_; }

private:
    EventSpec spec_;
    std::vector<int32_t> age_;
    std::vector<float> factor_; // of the threshold by age
    bool known_ = false;
    int64_t since_check_ = 0;
    int64_t check_after_; // so many tokens, at most gap_every
    int64_t pause_ = 0;   // tokens that are still computed whole
    int64_t checked_ = 0; // tokens
    bool given_up_ = false;
    float gap_ = 0.0F; // the last one measured
    double spent_ns_ = 0.0, last_ns_ = 0.0, ns_per_unit_ = 0.0;
    int64_t last_sent_ = 0;
    int32_t guess_ = 0x3F000000;
};

// The memory of one input in one llama context.
class EventState : public EventLimits {
public:
    EventState(const EventSpec &spec, int64_t n_in)
        : EventLimits(spec, (n_in + spec.block - 1) / spec.block), sent_(static_cast<size_t>(n_in)) {
        if (spec.early_checks > 0) {
            check_soon();
        }
    }

    // Chooses for one token. With EventMode::full index and value are not written; else the inputs sent, ascending, and
    // their changes. `most` is the number of units that KWTA leaves. score [n_in] is scratch.
    EventChoice choose(const float *x, const float *norm, int64_t most, int32_t *score, int32_t *index, float *value);
    // The values last sent, [n_in].
    const float *sent() const { return sent_.data(); }

    int64_t units() const { return (static_cast<int64_t>(sent_.size()) + spec().block - 1) / spec().block; }

private:
    std::vector<float> sent_;
};

} // namespace seeddelta
