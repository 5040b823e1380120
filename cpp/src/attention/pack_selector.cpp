// Keys chosen by their bits (KeyPack).
#include "attention/key_selector.hpp"
#include "format/counter.hpp"

namespace seeddelta {

namespace {

constexpr int64_t kRepackAt = 32;  // positions without bits are attended to; so many are packed at once
constexpr float kGapShare = 0.25F; // of a comparison in a layer's moving mean

class PackSelector final : public KeySelector {
public:
    PackSelector(const AttentionSettings &settings, PackSettings of_layer, int64_t layer, const AttentionProblem &p,
                 int64_t rows, SelectorTotals &totals)
        : gap_every_(settings.gap_every), gap_limit_(settings.gap_limit), settings_(std::move(of_layer)), layer_(layer),
          pack_(p.n_kv_head, p.dim_k, rows, settings_.mode, settings_.recent), heads_(static_cast<size_t>(p.n_kv_head)),
          totals_(totals) {}

    void written(int64_t row) override { pack_.written(row); }
    void forget() override { pack_.forget(); }
    bool fits(const AttentionProblem &p) const override { return pack_.fits(p, settings_.mode); }

    bool plan(const AttentionProblem &p, Attention &attention, SelectorPlan &plan) override {
        if (disabled_) {
            return false;
        }
        pack_.outgrow();
        plan.repack = !pack_.calibrated || pack_.pending >= kRepackAt || !settings_.refine;
        count(totals_.pack[PackCount::rebuilds], !pack_.calibrated && operations_ > 0 ? 1 : 0);
        plan.compare = gap_every_ > 0 && operations_ % gap_every_ == 0;
        ++operations_;
        plan.outcome.heads.assign(heads_.size(), {});
        attention.reserve(p, true, plan.compare);
        return true;
    }

    void attend(const AttentionProblem &p, Attention &attention, SelectorPlan &plan, int ith, int nth) override {
        attention.packed(p, pack_, settings_, plan.repack, plan.compare, plan.outcome, ith, nth);
    }

    void settle(SelectorPlan &plan) override {
        if (!plan.chosen) {
            return;
        }
        PackOutcome &outcome = plan.outcome;
        count(totals_.pack[PackCount::operations]);
        count(totals_.pack[PackCount::repacks], plan.repack ? 1 : 0);
        const auto add = [](std::atomic<uint64_t> &sum, std::atomic<uint64_t> &of_operation) {
            const uint64_t n = of_operation.exchange(0);
            count(sum, static_cast<int64_t>(n));
            return static_cast<int64_t>(n);
        };
        add(totals_.pack[PackCount::visible], outcome.visible);
        add(totals_.pack[PackCount::kept], outcome.kept);
        const int64_t scored = add(totals_.pack[PackCount::scored], outcome.scored);
        count(totals_.pack[PackCount::popcount], settings_.popcount ? scored : 0);
        add(totals_.pack[PackCount::values], outcome.values);
        add(totals_.pack[PackCount::dense], outcome.dense);
        outcome.unpacked.store(0);
        const bool stale = outcome.stale.exchange(false);
        count(totals_.pack[PackCount::stale], stale ? 1 : 0);
        for (size_t head = 0; head < heads_.size(); ++head) {
            HeadOutcome &of = outcome.heads[head];
            if (stale) { // the result was exact
                of.compared = 0;
                of.gap = of.recall = 0.0;
            }
            heads_[head] += of;
        }
        if (std::exchange(outcome.compared, false) && !stale) {
            settle_comparison(outcome);
        }
    }

    void report(SelectorReport &sum) const override {
        sum.pack_bytes += pack_.nbytes();
        sum.packed_layers += disabled_ ? 0 : 1;
        for (size_t head = 0; head < heads_.size(); ++head) {
            const auto kv_head = static_cast<int64_t>(head);
            sum.heads.push_back(
                {layer_, kv_head, settings_.exact(kv_head), settings_.budget_of(kv_head), heads_[head]});
        }
    }

private:
    void settle_comparison(const PackOutcome &outcome) {
        count(totals_.pack[PackCount::compared]);
        totals_.gap_sum += outcome.gap;
        totals_.recall_sum += outcome.recall;
        const auto gap = static_cast<float>(outcome.gap);
        gap_ = gap_ < 0.0F ? gap : gap_ + kGapShare * (gap - gap_);
        if (!(gap_ <= gap_limit_)) { // also when it is no number
            disabled_ = true;
            count(totals_.pack[PackCount::disabled]);
        }
    }

    int64_t gap_every_;
    float gap_limit_;
    PackSettings settings_;
    int64_t layer_;
    KeyPack pack_;
    std::vector<HeadOutcome> heads_;
    SelectorTotals &totals_;
    float gap_ = -1.0F; // moving mean; -1: not compared yet
    bool disabled_ = false;
    int64_t operations_ = 0;
};

} // namespace

std::unique_ptr<KeySelector> pack_selector(const AttentionSettings &settings, PackSettings of_layer, int64_t layer,
                                           const AttentionProblem &p, int64_t rows, SelectorTotals &totals) {
    return std::make_unique<PackSelector>(settings, std::move(of_layer), layer, p, rows, totals);
}

} // namespace seeddelta
