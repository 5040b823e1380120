// Attention over the keys that the bits of a KeyPack choose.
#include <algorithm>
#include <bit>
#include <cmath>

#include "attention/attention.hpp"
#include "attention/attention_scratch.hpp"
#include "format/counter.hpp"

namespace seeddelta {

namespace {

constexpr float kFurthest = -64.0F; // a weight below exp(-64) of the largest is nothing
constexpr int kHalvings = 14;       // of that range: 0.004 in the exponent

int64_t ones(const uint64_t *words, int64_t n) {
    int64_t sum = 0;
    for (int64_t i = 0; i < n; ++i) {
        sum += std::popcount(words[i]);
    }
    return sum;
}

double relative(double error, double norm) {
    return norm > 0.0 ? std::sqrt(error / norm) : (error > 0.0 ? 1.0 : 0.0);
}

// The first of the pairs of KV head and chunk that thread `ith` attends to: all threads have as much to do, when the
// heads' shares of the positions are what they ask for.
int64_t first_item(const AttentionProblem &p, const PackSettings &settings, int ith, int nth) {
    constexpr double overhead = 0.2; // of a choice, as a share of attention to everything (docs/internals/statepack.md)
    const auto cost = [&](int64_t kv_head) {
        const double budget = settings.budget_of(kv_head);
        const double share = budget <= 1.0 ? budget : budget / static_cast<double>(p.n_kv);
        return settings.keeps_all(kv_head) ? 1.0 : std::min(1.0, share + overhead);
    };
    double left = 0.0;
    for (int64_t kv_head = 0; kv_head < p.n_kv_head; ++kv_head) {
        left += cost(kv_head) * ith / nth;
    }
    for (int64_t kv_head = 0; kv_head < p.n_kv_head; ++kv_head) {
        if (left < cost(kv_head)) {
            const double chunk = left / cost(kv_head) * static_cast<double>(p.chunks());
            return kv_head * p.chunks() + std::min(static_cast<int64_t>(chunk + 1e-6), p.chunks());
        }
        left -= cost(kv_head);
    }
    return p.n_kv_head * p.chunks();
}

// Adds the first and the last bits of `from` to `to`.
void keep_ends(const uint64_t *from, int64_t n, int64_t first, int64_t last, uint64_t *to) {
    for (int64_t i = 0; i < n && first > 0; ++i) {
        for (uint64_t word = from[i]; word != 0 && first > 0; word &= word - 1, --first) {
            to[i] |= word & (~word + 1);
        }
    }
    for (int64_t i = n - 1; i >= 0 && last > 0; --i) {
        for (uint64_t word = from[i]; word != 0 && last > 0; --last) {
            const uint64_t top = uint64_t{1} << (63 - std::countl_zero(word));
            to[i] |= top;
            word &= ~top;
        }
    }
}

QueryBits query_bits(const float *query, const float *scale, int64_t dim, const PackSettings &settings, int8_t *table,
                     uint8_t *plus, uint8_t *minus) {
    float q[kLargestHead];
    float amax = 0.0F;
    float sum = 0.0F;
    for (int64_t d = 0; d < dim; ++d) {
        q[d] = query[d] * scale[d];
        amax = std::max(amax, std::fabs(q[d]));
        sum += std::fabs(q[d]);
    }
    const float mean = sum / static_cast<float>(dim);
    const float least = settings.mode == PackMode::ternary ? settings.eps * mean : 0.0F;
    const float inverse = amax > 0.0F ? static_cast<float>(kQueryLimit) / amax : 0.0F;
    QueryBits result{settings.popcount ? mean : amax / static_cast<float>(kQueryLimit), 0};
    int quantized[8];
    for (int64_t d = 0; d < dim; d += 8) {
        plus[d / 8] = 0;
        minus[d / 8] = 0;
        for (int64_t i = 0; i < 8; ++i) {
            const float x = q[d + i];
            const int sign = std::fabs(x) > least ? (x > 0.0F ? 1 : -1) : 0;
            plus[d / 8] |= static_cast<uint8_t>((sign > 0 ? 1 : 0) << i);
            minus[d / 8] |= static_cast<uint8_t>((sign < 0 ? 1 : 0) << i);
            // not when the query is not finite or too small for the inverse: an int cannot hold that
            const bool fits = std::fabs(x * inverse) <= static_cast<float>(kQueryLimit + 1);
            quantized[i] = settings.popcount ? sign : (fits ? static_cast<int>(std::nearbyint(x * inverse)) : 0);
            result.sum += quantized[i];
        }
        for (int64_t half = 0; half < 2; ++half) {
            int8_t *entry = table + (d / 4 + half) * 16;
            for (int index = 0; index < 16; ++index) {
                int of_set = 0;
                for (int i = 0; i < 4; ++i) {
                    of_set += (index >> i & 1) != 0 ? quantized[4 * half + i] : 0;
                }
                entry[index] = static_cast<int8_t>(of_set);
            }
        }
    }
    return result;
}

} // namespace

// Estimates of one chunk for all heads that share the KV head; what is not visible or has no bits gets none.
void Attention::score(const AttentionProblem &p, const KeyPack &pack, const PackSettings &settings, Scratch &scratch,
                      int64_t kv_head, int64_t chunk) {
    const AttentionKernels &k = kernels().attention;
    const bool ternary = pack.mode() == PackMode::ternary;
    if (scratch.table_of != kv_head) {
        for (int64_t h = 0; h < p.group(); ++h) {
            scratch.query[h] = query_bits(scratch.q + (kv_head * p.group() + h) * p.dim_k, pack.scale(kv_head), p.dim_k,
                                          settings, scratch.table + h * p.dim_k * 4, scratch.plus + h * p.dim_k / 8,
                                          scratch.minus + h * p.dim_k / 8);
        }
        scratch.table_of = kv_head;
    }
    uint64_t visible[2];
    visible_bits(p, chunk, visible);
    if (kv_head == 0) {
        visible_.data[2 * chunk] = visible[0];
        visible_.data[2 * chunk + 1] = visible[1];
    }
    const uint64_t *valid = pack.valid_words() + 2 * chunk;
    const uint64_t known[2] = {visible[0] & valid[0], visible[1] & valid[1]};
    const bool complete = (known[0] & known[1]) == ~uint64_t{0};
    const float *gamma = pack.gamma(kv_head) + chunk * kAttentionChunk;
    for (int64_t h = 0; h < p.group(); ++h) {
        ScoreTask task{pack.plane(kv_head, chunk, false),
                       p.dim_k,
                       kAttentionChunk / kKeyBlock,
                       scratch.table + h * p.dim_k * 4,
                       scratch.plus + h * p.dim_k / 8,
                       scratch.minus + h * p.dim_k / 8,
                       scratch.sums,
                       0};
        const auto sum = settings.popcount ? k.popcount : k.score;
        sum(task);
        if (ternary) {
            task.plane = pack.plane(kv_head, chunk, true);
            task.add = -1;
            sum(task);
        }
        // binary: a channel without a bit counts -1
        const QueryBits &query = scratch.query[h];
        const float factor = ternary ? query.step : 2.0F * query.step;
        const float offset = ternary ? 0.0F : -query.step * static_cast<float>(query.sum);
        const int64_t head = kv_head * p.group() + h;
        float *out = estimates_.data + head * p.padded() + chunk * kAttentionChunk;
        float top = k.estimate(scratch.sums, gamma, kAttentionChunk, factor, offset, out);
        if (!complete) {
            top = kNone;
            for (int64_t i = 0; i < kAttentionChunk; ++i) {
                if ((known[i / 64] >> (i % 64) & 1) == 0) {
                    out[i] = kNone;
                }
                top = out[i] > top ? out[i] : top;
            }
        }
        tops_.data[head * p.chunks() + chunk] = top;
    }
}

// The least nearness that is kept.
float Attention::limit_of(const PackSettings &settings, float share, const float *near, int64_t n,
                          int64_t visible) const {
    const AttentionKernels &k = kernels().attention;
    const double wanted = share <= 1.0F ? std::ceil(static_cast<double>(share) * static_cast<double>(visible))
                                        : static_cast<double>(share);
    const auto budget = static_cast<int64_t>(std::min(wanted, static_cast<double>(visible))); // it may be infinite
    // Bisection for the largest limit that lets enough through.
    const auto search = [&](const auto &enough) {
        float low = kFurthest;
        float high = 0.0F;
        for (int i = 0; i < kHalvings; ++i) {
            const float middle = 0.5F * (low + high);
            (enough(middle) ? low : high) = middle;
        }
        return low;
    };
    float limit = budget >= visible ? kNone : search([&](float at) { return k.count(near, n, at) >= budget; });
    if (settings.mass > 0.0F) {
        const float enough = settings.mass * k.mass(near, n, kFurthest);
        limit = std::max(limit, search([&](float at) { return k.mass(near, n, at) >= enough; }));
    }
    return limit;
}

// Bits of the positions that the heads of a KV head attend to, in scratch.keep.
void Attention::choose(const AttentionProblem &p, const KeyPack &pack, const PackSettings &settings, Scratch &scratch,
                       int64_t kv_head, bool all, PackOutcome &outcome, bool counting) const {
    const int64_t words = 2 * p.chunks();
    const int64_t visible = ones(visible_.data, words);
    if (all || settings.keeps_all(kv_head)) {
        std::copy_n(visible_.data, words, scratch.keep);
    } else {
        for (int64_t h = 0; h < p.group(); ++h) {
            const float *tops = tops_.data + (kv_head * p.group() + h) * p.chunks();
            scratch.top[h] = *std::max_element(tops, tops + p.chunks());
        }
        const AttentionKernels &k = kernels().attention;
        k.nearness(estimates_.data + kv_head * p.group() * p.padded(), p.padded(), scratch.top, p.group(), p.padded(),
                   scratch.near);
        const float limit = limit_of(settings, settings.budget_of(kv_head), scratch.near, p.padded(), visible);
        k.above(scratch.near, p.padded(), limit, scratch.keep);
        int64_t unpacked = 0;
        for (int64_t i = 0; i < words; ++i) {
            const uint64_t unknown = ~pack.valid_words()[i];
            unpacked += std::popcount(unknown & visible_.data[i]);
            scratch.keep[i] |= unknown | pack.recent_words()[static_cast<size_t>(i)];
        }
        keep_ends(visible_.data, words, settings.sinks, settings.recent, scratch.keep);
        for (int64_t i = 0; i < words; ++i) {
            scratch.keep[i] &= visible_.data[i];
        }
        const int64_t kept = ones(scratch.keep, words);
        if (static_cast<float>(kept) > settings.density * static_cast<float>(visible)) {
            std::copy_n(visible_.data, words, scratch.keep);
            count(outcome.dense, counting ? 1 : 0);
        }
        if (counting) { // the same for every KV head that chooses
            outcome.unpacked.store(static_cast<uint64_t>(unpacked), std::memory_order_relaxed);
        }
    }
    if (counting) {
        HeadOutcome &head = outcome.heads[static_cast<size_t>(kv_head)];
        head.visible = static_cast<uint64_t>(visible);
        head.kept = static_cast<uint64_t>(ones(scratch.keep, words));
        count(outcome.visible, visible);
        count(outcome.kept, static_cast<int64_t>(head.kept));
    }
}

void Attention::attend_kept(const AttentionProblem &p, Scratch &scratch, int64_t kv_head, int64_t chunk,
                            const PackSettings &settings, PackOutcome &outcome) const {
    bool biased = false;
    const int64_t n = gather(p, chunk, scratch.keep + 2 * chunk, scratch.rows, scratch.bias, biased);
    const bool exact = settings.exact(kv_head);
    const bool given = !settings.refine && !exact && !outcome.stale.load(std::memory_order_relaxed);
    for (int64_t h = 0; given && h < p.group(); ++h) {
        const float *estimates = estimates_.data + (kv_head * p.group() + h) * p.padded();
        for (int64_t i = 0; i < n; ++i) {
            scratch.given[h * kAttentionChunk + i] = estimates[scratch.rows[i]];
        }
    }
    count(outcome.values, attend(p, scratch, kv_head, chunk, scratch.rows, biased ? scratch.bias : nullptr, n,
                                 given ? scratch.given : nullptr, exact ? 0.0F : settings.negligible, partials_.data));
}

// Bits of the keys that have none yet. All threads; ends with a barrier.
void Attention::pack_keys(const AttentionProblem &p, KeyPack &pack, const PackSettings &settings, int ith, int nth) {
    if (!pack.calibrated) {
        for (int64_t kv_head = ith; kv_head < p.n_kv_head; kv_head += nth) {
            pack.calibrate(p, kv_head);
        }
    }
    barrier_.barrier(nth);
    for (int64_t chunk = ith; chunk < p.chunks(); chunk += nth) {
        pack.pack(p, settings, chunk);
    }
    barrier_.barrier(nth);
    for (int64_t kv_head = ith; kv_head < p.n_kv_head; kv_head += nth) {
        pack.smooth(settings, kv_head, p.n_kv);
    }
    barrier_.barrier(nth);
}

// Compares the bits of a few keys, others each time, with the keys in the cache.
void Attention::audit(const AttentionProblem &p, KeyPack &pack, const PackSettings &settings, PackOutcome &outcome,
                      int ith, int nth) const {
    for (int64_t kv_head = ith; kv_head < p.n_kv_head; kv_head += nth) {
        for (int64_t i = 0; !settings.exact(kv_head) && i < std::min(settings.audits, p.n_kv); ++i) {
            // an odd step that is prime to most lengths comes by all positions
            const uint64_t turn = pack.operations * static_cast<uint64_t>(settings.audits) + static_cast<uint64_t>(i);
            const int64_t row = pack.known_from(p, static_cast<int64_t>(turn * 37 % static_cast<uint64_t>(p.n_kv)));
            if (!pack.agrees(p, settings, kv_head, row)) {
                outcome.stale.store(true, std::memory_order_relaxed);
            }
        }
    }
}

// The output of one head is that of all keys; compared_ gets what the kept ones have lost.
void Attention::compare_head(const AttentionProblem &p, Scratch &scratch, int64_t head, float kept_top,
                             float kept_sum) {
    float *out = p.out + head * p.out_stride;
    float *kept = scratch.out;
    std::copy_n(out, p.dim_v, kept);
    float top = 0.0F;
    float sum = 0.0F;
    merge(p, head, exact_partials_.data, nullptr, out, &top, &sum);
    double *found = compared_.data() + 3 * head;
    found[0] = found[1] = 0.0;
    for (int64_t d = 0; d < p.dim_v; ++d) {
        found[0] += static_cast<double>(out[d] - kept[d]) * (out[d] - kept[d]);
        found[1] += static_cast<double>(out[d]) * out[d];
    }
    found[2] = static_cast<double>(exp_defined(kept_top - top)) * kept_sum / sum;
}

// Sums of a comparison over the heads of each KV head, and over all. One thread.
void Attention::sum_comparison(const AttentionProblem &p, PackOutcome &outcome) const {
    double error = 0.0;
    double norm = 0.0;
    double recall = 0.0;
    for (int64_t kv_head = 0; kv_head < p.n_kv_head; ++kv_head) {
        double sums[3] = {};
        for (int64_t i = 0; i < 3 * p.group(); ++i) {
            sums[i % 3] += compared_[static_cast<size_t>(3 * kv_head * p.group() + i)];
        }
        HeadOutcome &head = outcome.heads[static_cast<size_t>(kv_head)];
        head.compared = 1;
        head.gap = relative(sums[0], sums[1]);
        head.recall = sums[2] / static_cast<double>(p.group());
        error += sums[0];
        norm += sums[1];
        recall += sums[2];
    }
    outcome.compared = true;
    outcome.gap = relative(error, norm);
    outcome.recall = recall / static_cast<double>(p.n_head);
}

void Attention::packed(const AttentionProblem &p, KeyPack &pack, const PackSettings &settings, bool repack,
                       bool compare, PackOutcome &outcome, int ith, int nth) {
    if (repack) {
        pack_keys(p, pack, settings, ith, nth);
    }
    Scratch scratch(p);
    scratch.take_queries(p);
    audit(p, pack, settings, outcome, ith, nth);
    const int64_t items = p.n_kv_head * p.chunks();
    int64_t scored = 0;
    for (int64_t item = items * ith / nth; item < items * (ith + 1) / nth; ++item) {
        if (settings.scores(item / p.chunks())) {
            score(p, pack, settings, scratch, item / p.chunks(), item % p.chunks());
            ++scored;
        } else if (item < p.chunks()) {
            visible_bits(p, item, visible_.data + 2 * item);
        }
    }
    count(outcome.scored, scored * kAttentionChunk * p.group());
    barrier_.barrier(nth);
    const bool all = outcome.stale.load(std::memory_order_relaxed);
    const int64_t end = first_item(p, settings, ith + 1, nth);
    for (int64_t item = first_item(p, settings, ith, nth); item < end; ++item) {
        const int64_t kv_head = item / p.chunks();
        const int64_t chunk = item % p.chunks();
        if (scratch.keep_of != kv_head) {
            choose(p, pack, settings, scratch, kv_head, all, outcome, chunk == 0);
            scratch.keep_of = kv_head;
        }
        attend_kept(p, scratch, kv_head, chunk, settings, outcome);
        if (compare) {
            attend_all(p, scratch, kv_head, 1, chunk, exact_partials_.data);
        }
    }
    barrier_.barrier(nth);
    for (int64_t head = p.n_head * ith / nth; head < p.n_head * (ith + 1) / nth; ++head) {
        float top = 0.0F;
        float sum = 0.0F;
        merge(p, head, partials_.data, nullptr, p.out + head * p.out_stride, &top, &sum);
        if (compare) {
            compare_head(p, scratch, head, top, sum);
        }
    }
    if (compare) {
        barrier_.barrier(nth);
    }
    if (ith == 0) {
        ++pack.operations;
        if (compare) {
            sum_comparison(p, outcome);
        }
        if (repack) {
            pack.calibrated = true;
            pack.pending = 0;
        }
        pack.pending = std::max(pack.pending, static_cast<int64_t>(outcome.unpacked.load(std::memory_order_relaxed)));
        if (outcome.stale.load(std::memory_order_relaxed)) {
            pack.forget();
        }
    }
}

} // namespace seeddelta
