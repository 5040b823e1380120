// Which windows of event-driven attention have changed most.
#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <limits>

#include "attention/attention_events.hpp"
#include "attention/lane_sums.hpp"
#include "format/counter.hpp"

namespace seeddelta {

static constexpr float kNone = -std::numeric_limits<float>::infinity();

// Variance of the channels of a window's visible keys.
void EventMemory::measure(const AttentionProblem &p, int64_t item) {
    float *variance = spread_.data() + item * dim_k_;
    float mean[kLargestHead] = {};
    float key[kLargestHead];
    std::fill_n(variance, dim_k_, 0.0F);
    const int64_t chunk = item / n_kv_head_;
    float n = 0.0F;
    for (int64_t row = chunk * kAttentionChunk; row < std::min((chunk + 1) * kAttentionChunk, p.n_kv); ++row) {
        if (p.hidden(row)) {
            continue;
        }
        n += 1.0F;
        p.key(item % n_kv_head_, row, key);
        for (int64_t d = 0; d < dim_k_; ++d) { // Welford's
            const float before = key[d] - mean[d];
            mean[d] += before / n;
            variance[d] += before * (key[d] - mean[d]);
        }
    }
    for (int64_t d = 0; d < dim_k_; ++d) {
        variance[d] /= n;
    }
    measured_[size_of(item)] = 1;
}

// What the present query adds to the scores of the windows that may be reused: its change times their mean key, which
// is the derivative of the logarithm of their share of the softmax. That is the least they gain; keys that mattered
// little before can matter more, which half the variance of the scores that the change makes stands for.
void EventMemory::estimate(const AttentionProblem &p, int ith, int nth) {
    const int64_t n = p.chunks() * n_kv_head_;
    const int64_t group = p.group();
    for (int64_t item = n * ith / nth; item < n * (ith + 1) / nth; ++item) {
        if (kind_[size_of(item / n_kv_head_)] != Kind::ranked) {
            continue;
        }
        if (measured_[size_of(item)] == 0) {
            measure(p, item);
        }
        const float *spread = spread_.data() + item * dim_k_;
        float moved = 0.0F;
        for (int64_t head = item % n_kv_head_ * group; head < (item % n_kv_head_ + 1) * group; ++head) {
            const int64_t at = item / n_kv_head_ * n_head_ + head;
            const float *q = p.q + head * p.q_stride;
            const float *before = queries_.data() + at * dim_k_;
            const float *key = keys_.data() + at * (2 + dim_k_);
            moved += sum_of(dim_k_, [&](int64_t d) { return (q[d] - before[d]) * (q[d] - before[d]); });
            shift_[size_of(at)] = p.scale * (dot(q, key + 2, dim_k_) - key[0]);
            const float variance =
                sum_of(dim_k_, [&](int64_t d) { return (q[d] - before[d]) * (q[d] - before[d]) * spread[d]; });
            reach_[size_of(at)] = 0.5F * p.scale * p.scale * variance;
        }
        delta_[size_of(item)] = moved > 0.0F ? std::sqrt(moved / square_[size_of(item)]) : moved; // NaN stays
    }
}

// The changes as scores: relative distance of the query times the share of the softmax, of the head with the largest.
// False when one is no number.
bool EventMemory::rank(const AttentionProblem &p) {
    const int64_t chunks = p.chunks();
    const int64_t group = p.group();
    for (int64_t head = 0; head < n_head_; ++head) {
        top_[size_of(head)] = p.sinks != nullptr ? p.sinks[head] : kNone;
        for (int64_t at = head; at < chunks * n_head_; at += n_head_) {
            const float top = partials_[size_of(at * (2 + dim_v_))] + (shift_[size_of(at)] + reach_[size_of(at)]);
            top_[size_of(head)] = std::max<double>(top_[size_of(head)], top);
        }
        const auto most = static_cast<float>(top_[size_of(head)]);
        double total = p.sinks != nullptr ? exp_defined(p.sinks[head] - most) : 0.0F;
        for (int64_t at = head; at < chunks * n_head_; at += n_head_) {
            const float *partial = partials_.data() + at * (2 + dim_v_);
            const bool empty = kind_[size_of(at / n_head_)] == Kind::empty;
            const float gain = shift_[size_of(at)] + reach_[size_of(at)];
            const float weight = empty ? 0.0F : exp_defined(partial[0] + gain - most) * partial[1];
            weight_[size_of(at)] = weight;
            total += weight;
        }
        total_[size_of(head)] = total;
    }
    bool finite = true;
    for (int64_t item = 0; item < chunks * n_kv_head_; ++item) {
        if (kind_[size_of(item / n_kv_head_)] != Kind::ranked) {
            score_[size_of(item)] = EventLimits::kGiven;
            continue;
        }
        double share = 0.0;
        for (int64_t head = item % n_kv_head_ * group; head < (item % n_kv_head_ + 1) * group; ++head) {
            const double of_head = weight_[size_of(item / n_kv_head_ * n_head_ + head)] / total_[size_of(head)];
            share = of_head > share || std::isnan(of_head) ? of_head : share;
        }
        const float delta = delta_[size_of(item)];
        const auto change = static_cast<float>(share * static_cast<double>(delta));
        finite = finite && std::isfinite(change);
        // a share may be too small for a number: with a threshold of 0 it is sent nevertheless
        score_[size_of(item)] = std::bit_cast<int32_t>(delta > 0.0F ? std::max(change, FLT_MIN) : 0.0F);
    }
    return finite;
}

void EventMemory::choose(const AttentionProblem &p, double budget_ns) {
    if (choice_.mode == EventMode::full) {
        return;
    }
    const int64_t n = p.chunks() * n_kv_head_;
    const bool stale = stale_.load(std::memory_order_relaxed);
    if (!stale && rank(p)) {
        choice_ = limits_.choose(score_.data(), n, 1.0F, n, budget_ns - elapsed(), sent_.data());
        n_sent_ = choice_.sent;
        return;
    }
    forget();
    limits_.whole(n);
    count(counters_[EventCount::wrong], stale ? 1 : 0);
    choice_.mode = EventMode::full;
    for (int64_t item = 0; item < n; ++item) {
        if (kind_[size_of(item / n_kv_head_)] == Kind::ranked) {
            sent_[size_of(n_sent_++)] = static_cast<int32_t>(item);
        }
    }
}

} // namespace seeddelta
