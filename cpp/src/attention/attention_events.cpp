#include "attention/attention_events.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "attention/lane_sums.hpp"
#include "format/counter.hpp"

namespace seeddelta {

static constexpr float kNone = -std::numeric_limits<float>::infinity();
static constexpr int64_t kRecent = kAttentionChunk;        // positions written last, whose windows are always computed
static constexpr int64_t kMaskBytes = kAttentionChunk * 4; // of a window, in float32

EventMemory::EventMemory(const EventSpec &spec, const AttentionProblem &p, int64_t rows, EventCounters &counters)
    : n_head_(p.n_head), n_kv_head_(p.n_kv_head), dim_k_(p.dim_k), dim_v_(p.dim_v),
      chunks_((rows + kAttentionChunk - 1) / kAttentionChunk), limits_(spec, chunks_ * p.n_kv_head),
      counters_(counters) {
    const int64_t of_heads = chunks_ * n_head_;
    partials_.resize(size_of(of_heads * (2 + dim_v_)));
    keys_.resize(size_of(of_heads * (2 + dim_k_)));
    queries_.resize(size_of(of_heads * dim_k_));
    shift_.resize(size_of(of_heads));
    reach_.resize(size_of(of_heads));
    weight_.resize(size_of(of_heads));
    spread_.resize(size_of(chunks_ * n_kv_head_ * dim_k_));
    measured_.resize(size_of(chunks_ * n_kv_head_));
    for (std::vector<float> *of_units : {&square_, &delta_}) {
        of_units->resize(size_of(chunks_ * n_kv_head_));
    }
    for (std::vector<int32_t> *of_units : {&score_, &given_, &sent_, &rest_}) {
        of_units->resize(size_of(chunks_ * n_kv_head_));
    }
    mask_.resize(size_of(chunks_ * kMaskBytes));
    bytes_.resize(size_of(chunks_));
    kind_.resize(size_of(chunks_));
    visible_.resize(size_of(chunks_));
    changed_.resize(size_of(chunks_));
    written_at_.resize(size_of(chunks_));
    kept_.resize(size_of(n_head_ * dim_v_));
    top_.resize(size_of(n_head_));
    total_.resize(size_of(n_head_));
    busy_.resize(size_of(n_kv_head_));
}

int64_t EventMemory::nbytes() const {
    const size_t floats = partials_.size() + keys_.size() + queries_.size() + 3 * shift_.size() + spread_.size();
    return static_cast<int64_t>(floats * sizeof(float) + mask_.size());
}

bool EventMemory::fits(const AttentionProblem &p) const {
    return p.n_head == n_head_ && p.n_kv_head == n_kv_head_ && p.dim_k == dim_k_ && p.dim_v == dim_v_ &&
           p.chunks() <= chunks_;
}

void EventMemory::written(int64_t row) {
    const size_t chunk = size_of(row / kAttentionChunk);
    changed_[chunk] = 1;
    written_at_[chunk] = ++written_;
}

void EventMemory::forget() {
    count(counters_[EventCount::resets], limits_.known() ? 1 : 0);
    limits_.forget();
}

bool EventMemory::paused() {
    if (limits_.pause() <= 1) { // the last token of a pause fills the memory
        return false;
    }
    limits_.whole(0);
    limits_.forget();
    count(counters_[EventCount::operations]);
    count(counters_[EventCount::full]);
    return true;
}

double EventMemory::elapsed() const {
    return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - began_).count();
}

// Whether a window's mask is that of the last operation; remembers it.
bool EventMemory::same_mask(const AttentionProblem &p, int64_t chunk) {
    const size_t at = size_of(chunk);
    const int64_t row = chunk * kAttentionChunk;
    const int64_t n = std::min(kAttentionChunk, p.n_kv - row);
    const void *mask = p.mask != nullptr ? static_cast<const void *>(p.mask + row) : p.mask32 + row;
    const int64_t bytes = n * (p.mask != nullptr ? 2 : 4);
    uint8_t *before = mask_.data() + chunk * kMaskBytes;
    if (bytes_[at] == bytes && std::memcmp(mask, before, size_of(bytes)) == 0) {
        return true;
    }
    std::memcpy(before, mask, size_of(bytes));
    bytes_[at] = bytes;
    visible_[at] = 0;
    for (int64_t i = row; i < row + n; ++i) {
        visible_[at] |= p.hidden(i) ? 0 : 1;
    }
    return false;
}

// Sorts the windows: computed in any case are those whose keys, values or mask have changed, the first one (attention
// sinks), the last one and those of the positions written last.
void EventMemory::sort_windows(const AttentionProblem &p, bool whole) {
    const int64_t chunks = p.chunks();
    for (int64_t chunk = chunks; chunk < used_; ++chunk) {
        bytes_[size_of(chunk)] = 0;
    }
    used_ = chunks;
    int64_t first = chunks;
    int64_t last = -1;
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
        const size_t at = size_of(chunk);
        const bool same = same_mask(p, chunk);
        const bool recent = written_at_[at] > 0 && written_ - written_at_[at] < static_cast<uint64_t>(kRecent);
        const bool given = whole || !same || changed_[at] != 0 || recent;
        changed_[at] = 0;
        kind_[at] = visible_[at] == 0 ? Kind::empty : given ? Kind::given : Kind::ranked;
        if (visible_[at] != 0) {
            first = std::min(first, chunk);
            last = chunk;
        }
    }
    if (last >= 0) {
        kind_[size_of(first)] = kind_[size_of(last)] = Kind::given;
    }
}

// Starts an operation.
void EventMemory::begin(const AttentionProblem &p) {
    began_ = std::chrono::steady_clock::now();
    stale_.store(false, std::memory_order_relaxed);
    const int64_t chunks = p.chunks();
    const bool whole = limits_.whole(chunks * n_kv_head_);
    if (whole) { // an error is as large after one token as after many
        limits_.check_soon();
    }
    sort_windows(p, whole);
    n_given_ = n_sent_ = n_rest_ = 0;
    choice_ = EventChoice{};
    choice_.mode = whole ? EventMode::full : EventMode::delta;
    audited_ = -1;
    const int64_t n = chunks * n_kv_head_;
    const auto turn = static_cast<int64_t>(operations_ * 37 % static_cast<uint64_t>(n));
    for (int64_t i = 0; i < n; ++i) {
        const Kind kind = kind_[size_of(i / n_kv_head_)];
        if (kind == Kind::given) {
            given_[size_of(n_given_++)] = static_cast<int32_t>(i);
            measured_[size_of(i)] = 0;
        }
        if (kind == Kind::ranked && (audited_ < 0 || (audited_ < turn && i >= turn))) {
            audited_ = static_cast<int32_t>(i);
        }
    }
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
        for (int64_t head = 0; kind_[size_of(chunk)] == Kind::empty && head < n_head_; ++head) {
            const int64_t at = chunk * n_head_ + head;
            partials_[size_of(at * (2 + dim_v_))] = kNone;
            partials_[size_of(at * (2 + dim_v_) + 1)] = 0.0F;
            shift_[size_of(at)] = reach_[size_of(at)] = 0.0F;
        }
    }
}

// Computes a thread's share of the listed windows, and remembers the query.
void EventMemory::compute(const AttentionProblem &p, Attention &attention, const std::vector<int32_t> &items, int64_t n,
                          int ith, int nth) {
    const int64_t begin = n * ith / nth;
    const int64_t end = n * (ith + 1) / nth;
    attention.windows(p, items.data() + begin, end - begin, partials_.data(), keys_.data());
    const int64_t group = p.group();
    for (int64_t i = begin; i < end; ++i) {
        const int64_t item = items[size_of(i)];
        float square = 0.0F;
        for (int64_t head = item % n_kv_head_ * group; head < (item % n_kv_head_ + 1) * group; ++head) {
            const int64_t at = item / n_kv_head_ * n_head_ + head;
            const float *q = p.q + head * p.q_stride;
            const float sum = partials_[size_of(at * (2 + dim_v_) + 1)];
            float *key = keys_.data() + at * (2 + dim_k_);
            for (int64_t d = 0; d < dim_k_; ++d) {
                key[2 + d] /= sum;
            }
            key[0] = dot(q, key + 2, dim_k_);
            std::copy_n(q, dim_k_, queries_.data() + at * dim_k_);
            square += dot(q, q, dim_k_);
            shift_[size_of(at)] = reach_[size_of(at)] = 0.0F;
        }
        square_[size_of(item)] = square;
    }
}

// Computes one of the windows that may be reused again, with the query that it was computed with.
void EventMemory::audit(const AttentionProblem &p, Attention &attention) {
    if (audited_ < 0) {
        return;
    }
    const int64_t first = audited_ / n_kv_head_ * n_head_;
    AttentionProblem before = p;
    before.q = queries_.data() + first * dim_k_;
    before.q_stride = dim_k_;
    attention.windows(before, &audited_, 1, attention.partials(), nullptr);
    const int64_t at = (first + audited_ % n_kv_head_ * p.group()) * (2 + dim_v_);
    const size_t bytes = size_of(p.group() * (2 + dim_v_)) * sizeof(float);
    if (std::memcmp(attention.partials() + at, partials_.data() + at, bytes) != 0) {
        stale_.store(true, std::memory_order_relaxed);
    }
}

// Everything that was reused is computed, and becomes the result.
void EventMemory::check(const AttentionProblem &p, Attention &attention, int ith, int nth) {
    attention.wait(nth);
    if (ith == 0) {
        for (int64_t head = 0; head < n_head_; ++head) {
            std::copy_n(p.out + head * p.out_stride, dim_v_, kept_.data() + head * dim_v_);
        }
        const int32_t *sent = sent_.data();
        for (int64_t item = 0; item < p.chunks() * n_kv_head_; ++item) {
            if (sent != sent_.data() + n_sent_ && *sent == item) {
                ++sent;
            } else if (kind_[size_of(item / n_kv_head_)] == Kind::ranked) {
                rest_[size_of(n_rest_++)] = static_cast<int32_t>(item);
            }
        }
    }
    attention.wait(nth);
    compute(p, attention, rest_, n_rest_, ith, nth);
    attention.wait(nth);
    attention.merge_all(p, partials_.data(), shift_.data(), ith, nth);
    attention.wait(nth);
    if (ith == 0) {
        double error = 0.0;
        double norm = 0.0;
        for (int64_t i = 0; i < n_head_ * dim_v_; ++i) {
            const double exact = p.out[i / dim_v_ * p.out_stride + i % dim_v_];
            error += (kept_[size_of(i)] - exact) * (kept_[size_of(i)] - exact);
            norm += exact * exact;
        }
        const auto gap = static_cast<float>(norm > 0.0 ? std::sqrt(error / norm) : (error > 0.0 ? 1.0 : 0.0));
        limits_.report_gap(gap);
        count(counters_[EventCount::checks]);
        count(counters_[EventCount::failed], gap <= limits_.spec().gap_tolerance ? 0 : 1);
    }
}

void EventMemory::settle(const AttentionProblem &p) {
    ++operations_;
    count(counters_[EventCount::operations]);
    if (choice_.mode == EventMode::full) {
        count(counters_[EventCount::full]);
        return;
    }
    const int64_t n = p.chunks() * n_kv_head_;
    const int32_t *sent = sent_.data();
    std::fill(busy_.begin(), busy_.end(), 0);
    int64_t seen = 0;
    int64_t ages = 0;
    for (int64_t item = 0; item < n; ++item) {
        if (sent != sent_.data() + n_sent_ && *sent == item) {
            ++sent;
            ++seen;
            busy_[size_of(item % n_kv_head_)] = 1;
        } else if (kind_[size_of(item / n_kv_head_)] == Kind::ranked) {
            ++seen;
            ages += limits_.age(item);
        }
    }
    count(counters_[EventCount::given], n_given_);
    count(counters_[EventCount::seen], seen);
    count(counters_[EventCount::sent], n_sent_);
    count(counters_[EventCount::forced], choice_.forced);
    count(counters_[EventCount::ages], ages);
    count(counters_[EventCount::quorum], choice_.quorum ? 1 : 0);
    count(counters_[EventCount::budget], choice_.budget ? 1 : 0);
    count(counters_[EventCount::heads], n_kv_head_);
    count(counters_[EventCount::idle], std::count(busy_.begin(), busy_.end(), 0));
}

void EventMemory::attend(const AttentionProblem &p, Attention &attention, double budget_ns, int ith, int nth) {
    if (ith == 0) {
        begin(p);
    }
    attention.wait(nth);
    compute(p, attention, given_, n_given_, ith, nth);
    if (ith == nth - 1) {
        audit(p, attention);
    }
    estimate(p, ith, nth);
    attention.wait(nth);
    double chosen_at = 0.0;
    if (ith == 0) {
        choose(p, budget_ns);
        chosen_at = elapsed();
    }
    attention.wait(nth);
    compute(p, attention, sent_, n_sent_, ith, nth);
    attention.wait(nth);
    if (ith == 0) {
        limits_.report_time(choice_.mode == EventMode::full ? 0.0 : elapsed() - chosen_at);
    }
    attention.merge_all(p, partials_.data(), shift_.data(), ith, nth);
    if (choice_.mode == EventMode::check) {
        check(p, attention, ith, nth);
    }
    if (ith == 0) {
        last_ns_ = elapsed();
        settle(p);
    }
}

} // namespace seeddelta
