#include "gating/compose.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>

#include "format/counter.hpp"
#include "format/finite.hpp"

namespace seeddelta {

namespace {

bool bit(const uint64_t *bits, int64_t i) {
    return (bits[i / 64] >> (i % 64) & 1) != 0;
}

int64_t list_all(const float *x, int64_t n, int32_t *index, float *value) {
    for (int64_t i = 0; i < n; ++i) {
        index[i] = static_cast<int32_t>(i);
        value[i] = x[i];
    }
    return n;
}

// Units of one input each. Without branches: which units win is as good as random.
int64_t list_winners(const float *x, const int32_t *score, int64_t n, const TopK &top, int32_t *index, float *value) {
    int64_t found = 0;
    int64_t ties = top.ties;
    for (int64_t i = 0; i < n; ++i) {
        index[found] = static_cast<int32_t>(i);
        value[found] = x[i];
        const int64_t tie = score[i] == top.threshold && ties > 0 ? 1 : 0;
        ties -= tie;
        found += (score[i] > top.threshold ? 1 : 0) + tie;
    }
    return found;
}

// Blocks of inputs; `bits` (or null) says which inputs of a block pass.
int64_t list_blocks(const float *x, const int32_t *score, int64_t n, int64_t block, const TopK &top,
                    const uint64_t *bits, int32_t *index, float *value) {
    int64_t found = 0;
    int64_t ties = top.ties;
    for (int64_t start = 0; start < n; start += block) {
        const int32_t s = score[start / block];
        const bool tie = s == top.threshold && ties > 0;
        ties -= tie ? 1 : 0;
        for (int64_t i = start; (s > top.threshold || tie) && i < std::min(start + block, n); ++i) {
            if (bits == nullptr || bit(bits, i)) {
                index[found] = static_cast<int32_t>(i);
                value[found++] = x[i];
            }
        }
    }
    return found;
}

} // namespace

int64_t list_bits(const float *x, const uint64_t *bits, int64_t n, int32_t *index, float *value) {
    int64_t found = 0;
    for (int64_t word = 0; word < bitmap_words(n); ++word) {
        for (uint64_t rest = bits[word]; rest != 0; rest &= rest - 1) {
            const int64_t i = 64 * word + std::countr_zero(rest);
            index[found] = static_cast<int32_t>(i);
            value[found++] = x[i];
        }
    }
    return found;
}

// KWTA among the units of `bits` (null: all). Returns how many inputs it lists.
int64_t Gate::rank(const float *x, const uint64_t *bits, int64_t passed, int32_t *score, int32_t *index, float *value) {
    const KwtaSpec &kwta = spec_.kwta;
    const int64_t n = spec_.n_in;
    const int64_t block = kwta.block;
    const int64_t units = (n + block - 1) / block;
    if (bits != nullptr) {
        for (int64_t u = 0; u < units; ++u) {
            bool any = false;
            for (int64_t i = u * block; !any && i < std::min((u + 1) * block, n); ++i) {
                any = bit(bits, i);
            }
            score[u] = any ? score[u] : -1;
        }
    }
    TopK top;
    if (kwta.threshold >= 0.0F) {
        top.threshold = std::bit_cast<int32_t>(kwta.threshold);
        top.passes = 1;
    } else {
        int64_t k = kwta.keep_count > 0 ? kwta.keep_count : std::llround(kwta.keep * static_cast<double>(units));
        k = std::clamp<int64_t>(k, 1, units);
        top = top_k(score, units, k, guess_.load(std::memory_order_relaxed));
        if (top.threshold >= 0) {
            guess_.store(top.threshold, std::memory_order_relaxed);
        }
    }
    const int64_t found = block == 1 ? list_winners(x, score, n, top, index, value)
                                     : list_blocks(x, score, n, block, top, bits, index, value);
    if (kwta.renormalize) {
        const float factor = kwta_renormalization(x, n, index, found, kwta.temperature);
        for (int64_t i = 0; i < found; ++i) {
            value[i] *= factor;
        }
    }
    count(counters_[GateCount::kwta_calls]);
    count(counters_[GateCount::kwta_kept], found);
    count(counters_[GateCount::kwta_seen], passed);
    count(counters_[GateCount::kwta_passes], top.passes);
    return found;
}

EventChoice Gate::choose_events(const float *x, const GateScratch &scratch, int32_t *index, float *value,
                                bool &finite) {
    const int64_t n = spec_.n_in;
    const KwtaSpec &kwta = spec_.kwta;
    finite = all_finite(x, n);
    if (!finite) {
        event_.forget();
        EventChoice choice;
        choice.sent = n;
        return choice;
    }
    const bool limited = this->kwta() && step_ % kwta.duty == 0;
    int64_t most = event_.units();
    if (limited) {
        most = kwta.keep_count > 0 ? kwta.keep_count : std::llround(kwta.keep * static_cast<double>(event_.units()));
        most = std::clamp<int64_t>(most, 1, event_.units());
    }
    ++step_;
    const EventChoice choice = event_.choose(x, kwta.norm, most, scratch.score, index, value);
    count(counters_[GateCount::event_calls]);
    if (choice.mode == EventMode::full) {
        count(counters_[GateCount::event_full]);
        return choice;
    }
    count(counters_[GateCount::kwta_calls], limited ? 1 : 0);
    count(counters_[GateCount::kwta_kept], limited ? choice.sent : 0);
    count(counters_[GateCount::kwta_seen], limited ? n : 0);
    count(counters_[GateCount::duty_hits], this->kwta() && !limited ? 1 : 0);
    count(counters_[GateCount::event_sent], choice.sent);
    count(counters_[GateCount::event_seen], n);
    count(counters_[GateCount::event_forced], choice.forced);
    count(counters_[GateCount::event_quorum], choice.quorum ? 1 : 0);
    count(counters_[GateCount::event_budget], choice.budget ? 1 : 0);
    return choice;
}

EventMode Gate::send(const float *x, const GateScratch &scratch, int32_t *index, float *value, int64_t &listed,
                     bool &finite) {
    const EventChoice choice = choose_events(x, scratch, index, value, finite);
    listed = choice.mode == EventMode::full ? list_all(x, spec_.n_in, index, value) : choice.sent;
    return choice.mode;
}

int64_t Gate::send_row(const float *x, const GateScratch &scratch, int32_t *index, float *row, bool &finite) {
    const EventChoice choice = choose_events(x, scratch, index, row, finite);
    std::copy_n(finite ? event_.sent() : x, spec_.n_in, row);
    return choice.mode == EventMode::delta ? choice.sent : spec_.n_in;
}

// Steps of tuning. A share above kMostKept saves nothing; then fewer tokens are gated.
static constexpr double kKeepStep = 0.05, kLeastKept = 0.05, kMostKept = 0.95;
static constexpr int kLargestDuty = 64;
static constexpr float kSlack = 0.5F; // of the tolerance: below it more is left out

static bool tune_to(KwtaSpec &kwta, float gap, int first_duty) {
    const float mean = gap / static_cast<float>(kwta.duty); // the other tokens are exact
    const double keep = kwta.keep;
    const int duty = kwta.duty;
    if (!(mean <= kwta.gap_tolerance)) {
        if (keep < kMostKept) {
            kwta.keep = std::min(keep + kKeepStep, kMostKept);
        } else {
            kwta.duty = std::min(duty + 1, kLargestDuty);
        }
    } else if (mean < kSlack * kwta.gap_tolerance) {
        if (duty > first_duty) {
            kwta.duty = duty - 1;
        } else {
            kwta.keep = std::max(keep - kKeepStep, std::min(keep, kLeastKept));
        }
    }
    return keep != kwta.keep || duty != kwta.duty;
}

bool Gate::check_due() {
    if (spec_.kwta.gap_every == 0 || spec_.pack.aggressive || !kwta() || profiling_) {
        return false;
    }
    if (checked_) {
        checked_ = false;
        count(counters_[GateCount::kwta_tuned], tune_to(spec_.kwta, kwta_gap_, first_duty_) ? 1 : 0);
    }
    if (step_ % spec_.kwta.duty != 0 || --until_check_ > 0) {
        return false;
    }
    check_every_ = std::min<int64_t>(2 * check_every_, spec_.kwta.gap_every);
    until_check_ = check_every_;
    checked_ = true;
    kwta_gap_ = 0.0F;
    return true;
}

void Gate::report_gap(float gap) {
    if (!events()) {
        count(counters_[GateCount::kwta_checks]);
        kwta_gap_ = std::max(kwta_gap_, gap);
        return;
    }
    count(counters_[GateCount::event_checks]);
    count(counters_[GateCount::event_failed], gap <= spec_.event.gap_tolerance ? 0 : 1);
    event_.report_gap(gap);
}

void Gate::add_to_profile(int32_t *score, int64_t units) {
    std::sort(score, score + units, std::greater<>());
    const auto energy = [&](int64_t i) {
        const auto s = static_cast<double>(std::bit_cast<float>(score[i]));
        return spec_.kwta.block == 1 ? s * s : s;
    };
    double all = 0.0;
    for (int64_t i = 0; i < units; ++i) {
        all += energy(i);
    }
    double kept = 0.0;
    int64_t i = 0;
    for (int level = 0; level < kProfileLevels; ++level) {
        const int64_t k = std::max<int64_t>(1, units * (level + 1) / kProfileLevels);
        for (; i < k; ++i) {
            kept += energy(i);
        }
        profile_.threshold[level] += static_cast<double>(std::bit_cast<float>(score[k - 1]));
        profile_.dropped[level] += all > 0.0 ? 1.0 - kept / all : 0.0;
    }
    const auto zeros = std::count_if(score, score + units, [](int32_t s) { return s == 0; });
    profile_.zeros += static_cast<double>(zeros) / static_cast<double>(units);
    ++profile_.tokens;
}

int64_t Gate::select(const float *x, int64_t token, const GateScratch &scratch, int32_t *index, float *value,
                     bool &finite) {
    const int64_t n = spec_.n_in;
    finite = kwta() || profiling_ ? kwta_scores(x, n, spec_.kwta.norm, spec_.kwta.block, scratch.score)
                                  : all_finite(x, n); // a bitmap would drop what is no number
    if (!finite) {
        return list_all(x, n, index, value);
    }
    if (profiling_) {
        add_to_profile(scratch.score, (n + spec_.kwta.block - 1) / spec_.kwta.block);
        return list_all(x, n, index, value);
    }
    const uint64_t *bits = nullptr;
    int64_t passed = n;
    if (packs()) {
        const PackResult packed = pack_select(spec_.pack, x, n, scratch.bits, scratch.bits + bitmap_words(n), pack_);
        count(counters_[GateCount::pack_tokens]);
        count(counters_[GateCount::pack_used], packed.used ? 1 : 0);
        count(counters_[GateCount::pack_units], packed.units);
        count(counters_[GateCount::pack_negative], packed.negative);
        count(counters_[GateCount::pack_seen], n);
        count(counters_[GateCount::pack_switches], packed.switched ? 1 : 0);
        bits = packed.used ? scratch.bits : nullptr;
        passed = packed.used ? packed.units : n;
    }
    if (kwta() && (step_ + token) % spec_.kwta.duty == 0) {
        return rank(x, bits, passed, scratch.score, index, value);
    }
    count(counters_[GateCount::duty_hits], kwta() ? 1 : 0);
    return bits == nullptr ? list_all(x, n, index, value) : list_bits(x, bits, n, index, value);
}

} // namespace seeddelta
