// One active set a weight: StatePack drops what is nearly zero, KWTA ranks what is left, and what is chosen is the list
// of units that the kernels run over. With events it is the changes that are ranked, once: KWTA says how many may
// be sent, the budget of the events how many of those are.
#pragma once
#include <atomic>
#include <cstdint>

#include "format/counter.hpp"
#include "gating/event.hpp"
#include "gating/kwta.hpp"
#include "gating/statepack.hpp"

namespace seeddelta {

// What chooses the inputs of the weights that read one tensor (gate and up; query, key and value; each other alone).
struct GateSpec {
    int64_t n_in = 0;
    KwtaSpec kwta;
    PackSpec pack;
    EventSpec event;      // not with pack, and with KWTA's number only
    bool prompts = false; // also for products of several tokens; else those take all units
};

// What is counted of a gate.
enum class GateCount : uint8_t {
    kwta_calls,  // tokens whose units KWTA chose
    kwta_kept,   // units that it kept
    kwta_seen,   // of how many
    kwta_passes, // over the scores to find the thresholds
    duty_hits,   // tokens that passed whole because it was not their turn
    kwta_checks, // products compared with the full one
    kwta_tuned,  // times that this changed how many are kept, or how often
    pack_tokens,
    pack_used,     // tokens whose bitmap was used
    pack_units,    // bits set
    pack_negative, // bits of negative inputs (ternary)
    pack_seen,     // units that could have had one
    pack_switches, // times that the density turned the bitmap off or on
    pack_signs,    // products of signs
    event_calls,   // tokens
    event_full,    // of them computed whole
    event_sent,    // units sent by the others
    event_seen,    // of how many
    event_forced,  // of those sent, by their age
    event_quorum,  // tokens in which the quorum left changes out
    event_budget,  // in which the budget did
    event_checks,  // products compared with the full one
    event_failed,  // of them beyond the tolerance
    n,
};

// Levels of a profile: level i keeps (i + 1) / kProfileLevels of the units.
inline constexpr int kProfileLevels = 20;

// What each level would do, summed over the tokens seen: the score of the last unit kept, and the share of the energy
// (the squares of the scores) that is left out. For calibration.
struct GateProfile {
    int64_t tokens = 0;
    double threshold[kProfileLevels] = {};
    double dropped[kProfileLevels] = {};
    double zeros = 0.0; // share of the units whose score is 0
};

// Scratch of one selection.
struct GateScratch {
    int32_t *score = nullptr; // [n_in]
    uint64_t *bits = nullptr; // [2 * bitmap_words(n_in)]
};

// Units whose bit is set, ascending, and their inputs; index and value have room for n. Returns their number.
int64_t list_bits(const float *x, const uint64_t *bits, int64_t n, int32_t *index, float *value);

// What a gate may do, as bits of a set.
enum GateFeature : unsigned { kKwta = 1, kPack = 2, kEvents = 4, kZeros = 8 };

// The state of one GateSpec in one llama context.
class Gate {
public:
    explicit Gate(const GateSpec &spec)
        : spec_(spec), event_(spec.event, spec.event.enabled ? spec.n_in : 0), first_duty_(spec.kwta.duty) {
        publish();
    }

    const GateSpec &spec() const { return spec_; }
    const Counters<GateCount> &counters() const { return counters_; }
    // Whether it chooses anything for a product of so many tokens.
    bool works(int64_t n_tokens) const { return (kwta() || packs() || events()) && (n_tokens == 1 || spec_.prompts); }
    // Tokens must be chosen in order, by one thread: StatePack remembers.
    bool sequential() const { return packs() || events() || profiling_; }

    // The following while no product is computed:
    // How many KWTA keeps from now on.
    void tune(double keep, float threshold) {
        spec_.kwta.keep = keep;
        spec_.kwta.threshold = threshold;
    }
    // Features that are left out from now on. What was sent before a pause of events is not known after it.
    void pause(unsigned features) {
        if (((features ^ paused_) & kEvents) != 0) {
            event_.forget();
        }
        paused_ = features;
    }
    // Starts a new profile, or stops. Meanwhile nothing is skipped by KWTA.
    void profile(bool on) {
        profiling_ = on;
        if (on) {
            profile_ = {};
        }
    }
    const GateProfile &profile() const { return profile_; }

    // The units of the token `token` of this product, ascending, and their inputs; index and value have room for n_in.
    // Returns their number. Threads may choose for different tokens at once unless sequential().
    int64_t select(const float *x, int64_t token, const GateScratch &scratch, int32_t *index, float *value,
                   bool &finite);
    // With events: the units of a single token that are sent and their changes, or (EventMode::full) all of them.
    EventMode send(const float *x, const GateScratch &scratch, int32_t *index, float *value, int64_t &listed,
                   bool &finite);
    // The same for a token of a prompt: what its product is computed with, [n_in]. index is scratch of n_in. Returns
    // how many units were sent.
    int64_t send_row(const float *x, const GateScratch &scratch, int32_t *index, float *row, bool &finite);
    bool events() const { return spec_.event.enabled && !profiling_ && (paused_ & kEvents) == 0; }
    EventState &event() { return event_; }
    const EventState &event() const { return event_; }
    void report_gap(float gap);
    // Whether KWTA's choice for the next token is compared with the full product. What the last comparison said of how
    // many units are kept, and how often, holds from here on. By one thread.
    bool check_due();
    // For those who read while something is computed: what follows is as it was after the last product. By one thread.
    void publish() {
        published_.gap.store(event_.gap(), std::memory_order_relaxed);
        published_.event_ns.store(event_.last_ns(), std::memory_order_relaxed);
        published_.events_active.store(spec_.event.enabled && !event_.disabled(), std::memory_order_relaxed);
        published_.given_up.store(event_.given_up(), std::memory_order_relaxed);
        published_.gamma.store(pack_.gamma, std::memory_order_relaxed);
        published_.keep.store(spec_.kwta.keep, std::memory_order_relaxed);
        published_.duty.store(spec_.kwta.duty, std::memory_order_relaxed);
        published_.kwta_gap.store(kwta_gap_, std::memory_order_relaxed);
    }
    struct Published {
        std::atomic<double> keep{1.0};
        std::atomic<int> duty{1};
        std::atomic<float> kwta_gap{0.0F};
        std::atomic<float> gap{0.0F};
        std::atomic<double> event_ns{0.0};
        std::atomic<bool> events_active{false}, given_up{false};
        std::atomic<float> gamma{0.0F};
    };
    const Published &published() const { return published_; }
    // Nothing but exact zeros is left out, so that all inputs give the same product.
    bool zeros_alone() const { return spec_.pack.zeros && packs() && !kwta() && !events() && !profiling_; }
    // Whether the token just chosen for is multiplied by its signs.
    bool signs() const { return spec_.pack.aggressive && packs() && pack_.active && !profiling_; }
    void count_signs() { count(counters_[GateCount::pack_signs]); }
    // The product is chosen for: the next one continues counting tokens here. By one thread.
    void advance(int64_t n_tokens) { step_ += n_tokens; }

private:
    bool kwta() const { return spec_.kwta.enabled && (profiling_ || (paused_ & kKwta) == 0); }
    bool packs() const { return spec_.pack.enabled && (paused_ & (spec_.pack.zeros ? kZeros : kPack)) == 0; }
    void add_to_profile(int32_t *score, int64_t units);
    EventChoice choose_events(const float *x, const GateScratch &scratch, int32_t *index, float *value, bool &finite);
    int64_t rank(const float *x, const uint64_t *bits, int64_t passed, int32_t *score, int32_t *index, float *value);

    Published published_;
    GateSpec spec_;
    Counters<GateCount> counters_; // written by llama's threads, read by anyone
    PackState pack_;
    EventState event_;
    GateProfile profile_;
    bool profiling_ = false;
    unsigned paused_ = 0;
    int64_t step_ = 0;
    int64_t until_check_ = 1; // tokens that KWTA chooses for
    int64_t check_every_ = 1; // so many, at most spec_.kwta.gap_every
    int first_duty_ = 1;
    bool checked_ = false;
    float kwta_gap_ = 0.0F;                  // the last one measured, largest of the gate's weights
    std::atomic<int32_t> guess_{0x3F000000}; // 0.5
};

} // namespace seeddelta
