#include "gating/event.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "gating/kwta.hpp"

namespace seeddelta {

static constexpr int32_t kForced = 0x7F7FFFFF; // ranks before every finite score
static constexpr double kTimeMemory = 0.2;     // weight of the last token in the average time of a unit
static constexpr double kForget = 0.8;         // of that average for a token that sends nothing

EventLimits::EventLimits(const EventSpec &spec, int64_t n)
    : spec_(spec), age_(static_cast<size_t>(n)), check_after_(spec.gap_every) {
    for (int age = 0; age <= spec.age_max; ++age) {
        factor_.push_back(spec.beta * std::exp(-spec.lambda * static_cast<float>(age)));
    }
}

static double energy_above(const int32_t *score, int64_t n, int32_t threshold) {
    double sum = 0.0;
    for (int64_t i = 0; i < n; ++i) {
        const float s = score[i] > threshold ? std::bit_cast<float>(score[i]) : 0.0F;
        sum += static_cast<double>(s) * static_cast<double>(s);
    }
    return sum;
}

// How many of the largest scores have the share `quorum` of `energy`, to the precision of 1/2048 of an octave.
static int64_t quorum_count(const int32_t *score, int64_t n, double energy) {
    int32_t low = -1; // enough is above
    int32_t high = 0x7F800000;
    while (high - low > (1 << 12)) {
        const int32_t middle = low + (high - low) / 2;
        (energy_above(score, n, middle) >= energy ? low : high) = middle;
    }
    int64_t count = 0;
    for (int64_t i = 0; i < n; ++i) {
        count += score[i] > low ? 1 : 0;
    }
    return count;
}

bool EventLimits::whole(int64_t n) {
    if (last_sent_ > 0 && spent_ns_ > 0.0) {
        const double now = spent_ns_ / static_cast<double>(last_sent_);
        ns_per_unit_ = ns_per_unit_ > 0.0 ? ns_per_unit_ + kTimeMemory * (now - ns_per_unit_) : now;
    }
    last_ns_ = spent_ns_;
    spent_ns_ = 0.0;
    if (known_ && pause_ == 0) {
        return false;
    }
    pause_ -= pause_ > 0 ? 1 : 0;
    std::fill(age_.begin(), age_.end(), 0);
    known_ = true;
    since_check_ = 0;
    last_sent_ = n;
    return true;
}

EventChoice EventLimits::choose(int32_t *score, int64_t n, float unit, int64_t most, double budget_ns, int32_t *index) {
    EventChoice choice;
    int64_t candidates = 0;
    int64_t ranked = 0;
    double changed = 0.0;
    for (int64_t i = 0; i < n; ++i) {
        if (score[i] == kGiven) {
            continue;
        }
        ++ranked;
        const auto change = std::bit_cast<float>(score[i]);
        const bool old = age_[i] >= spec_.age_max && change > 0.0F;
        const float limit = spec_.theta * unit * factor_[static_cast<size_t>(std::min(age_[i], spec_.age_max))];
        const bool passes = old || change > limit;
        changed += static_cast<double>(change) * static_cast<double>(change);
        choice.forced += old ? 1 : 0;
        candidates += passes ? 1 : 0;
        score[i] = old ? kForced : passes ? score[i] : -1;
    }
    int64_t k = std::min<int64_t>({candidates, most, std::llround(spec_.most * static_cast<double>(ranked))});
    if (spec_.budget_ns > 0.0 && ns_per_unit_ > 0.0) {
        const double affordable = std::max(budget_ns / ns_per_unit_, 0.0);
        choice.budget = affordable < static_cast<double>(k);
        k = choice.budget ? static_cast<int64_t>(affordable) : k;
        if (affordable < 1.0) { // not even one: nothing is measured, so that a unit is tried again before long
            ns_per_unit_ *= kForget;
        }
    }
    if (spec_.quorum < 1.0F && choice.forced == 0) {
        const int64_t enough = quorum_count(score, n, static_cast<double>(spec_.quorum) * changed);
        choice.quorum = enough < k;
        k = std::min(k, enough);
    }
    const TopK top = k > 0 ? top_k(score, n, k, guess_) : TopK{0x7F800000, 0, 0};
    guess_ = k > 0 && top.threshold > 0 ? top.threshold : guess_;
    int64_t ties = top.ties;
    for (int64_t i = 0; i < n; ++i) {
        const bool tie = score[i] == top.threshold && ties > 0;
        ties -= tie ? 1 : 0;
        if (score[i] > top.threshold || tie) {
            index[choice.sent++] = static_cast<int32_t>(i);
            age_[i] = 0;
        } else {
            age_[i] = score[i] == kGiven ? 0 : age_[i] + 1;
        }
    }
    last_sent_ = choice.sent;
    choice.mode = EventMode::delta;
    if (spec_.gap_every > 0 && ++since_check_ >= check_after_) {
        since_check_ = 0;
        ++checked_;
        check_after_ = std::min<int64_t>(2 * check_after_, spec_.gap_every);
        gap_ = 0.0F;
        choice.mode = EventMode::check;
        std::fill(age_.begin(), age_.end(), 0);
    }
    return choice;
}

// The inputs of so many units, in their place. Returns how many there are.
static int64_t list_inputs(int32_t *index, int64_t units, int64_t block, int64_t n) {
    if (block == 1 || units == 0) {
        return units;
    }
    const int64_t total = (units - 1) * block + std::min(block, n - index[units - 1] * block);
    for (int64_t j = units - 1; j >= 0; --j) { // from the end: what is read next is not written yet
        const int64_t first = index[j] * block;
        for (int64_t i = std::min(block, n - first) - 1; i >= 0; --i) {
            index[j * block + i] = static_cast<int32_t>(first + i);
        }
    }
    return total;
}

EventChoice EventState::choose(const float *x, const float *norm, int64_t most, int32_t *score, int32_t *index,
                               float *value) {
    const auto n = static_cast<int64_t>(sent_.size());
    if (whole(units())) {
        std::copy_n(x, n, sent_.data());
        EventChoice choice;
        choice.sent = n;
        return choice;
    }
    double square = 0.0;
    for (int64_t i = 0; i < n; ++i) {
        const float s = norm == nullptr ? x[i] : x[i] * norm[i];
        square += static_cast<double>(s) * static_cast<double>(s);
    }
    const int64_t block = spec().block;
    for (int64_t u = 0; u < units(); ++u) {
        float changes = 0.0F;
        for (int64_t i = u * block; i < std::min((u + 1) * block, n); ++i) {
            const float change = norm == nullptr ? x[i] - sent_[i] : (x[i] - sent_[i]) * norm[i];
            changes = block == 1 ? std::fabs(change) : changes + change * change;
        }
        score[u] = std::bit_cast<int32_t>(block == 1 ? changes : std::sqrt(changes));
    }
    const auto unit = static_cast<float>(std::sqrt(square / static_cast<double>(units())));
    EventChoice choice = EventLimits::choose(score, units(), unit, most, spec().budget_ns, index);
    choice.sent = list_inputs(index, choice.sent, block, n);
    for (int64_t j = 0; j < choice.sent; ++j) {
        const int32_t i = index[j];
        value[j] = x[i] - sent_[i];
        sent_[i] = x[i];
    }
    if (choice.mode == EventMode::check) {
        std::copy_n(x, n, sent_.data());
    }
    return choice;
}

void EventLimits::report_gap(float gap) {
    gap_ = std::max(gap_, gap);
    if (!(gap <= spec_.gap_tolerance)) {
        given_up_ = given_up_ || checked_ <= spec_.early_checks;
        pause_ = given_up_ ? std::numeric_limits<int64_t>::max() : spec_.rearm;
    }
}

} // namespace seeddelta
