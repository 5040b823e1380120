// Windows that have changed (EventMemory).
#include <algorithm>

#include "attention/key_selector.hpp"
#include "format/counter.hpp"

namespace seeddelta {

namespace {

class EventSelector final : public KeySelector {
public:
    EventSelector(const EventSpec &spec, const AttentionProblem &p, int64_t rows, SelectorTotals &totals)
        : budget_ns_(spec.budget_ns), memory_(spec, p, rows, totals.event), totals_(totals) {
        ++totals.event_layers;
    }

    void written(int64_t row) override { memory_.written(row); }
    void forget() override { memory_.forget(); }
    void forget_queries() override { memory_.forget(); }
    bool fits(const AttentionProblem &p) const override { return memory_.fits(p); }

    bool plan(const AttentionProblem &p, Attention &attention, SelectorPlan &) override {
        attention.reserve(p, false, false);
        return !memory_.paused();
    }

    void attend(const AttentionProblem &p, Attention &attention, SelectorPlan &, int ith, int nth) override {
        memory_.attend(p, attention, budget_ns_ / static_cast<double>(totals_.event_layers), ith, nth);
    }

    void settle(SelectorPlan &plan) override {
        count(totals_.event[EventCount::attended], plan.chosen ? 1 : 0);
        told_ = {!memory_.limits().disabled(), memory_.limits().given_up(), memory_.limits().gap(), memory_.last_ns(),
                 memory_.nbytes()};
    }

    void report(SelectorReport &sum) const override {
        ++sum.event_layers;
        sum.event_active += told_.active ? 1 : 0;
        sum.event_given_up += told_.given_up ? 1 : 0;
        sum.event_gap = std::max(sum.event_gap, told_.gap);
        sum.event_ns += told_.last_ns;
        sum.event_bytes += told_.bytes;
    }

private:
    double budget_ns_;
    EventMemory memory_;
    SelectorTotals &totals_;
    struct {
        bool active = true;
        bool given_up = false;
        float gap = 0.0F;
        double last_ns = 0.0;
        int64_t bytes = 0;
    } told_; // after the last operation
};

} // namespace

std::unique_ptr<KeySelector> event_selector(const EventSpec &spec, const AttentionProblem &p, int64_t rows,
                                            SelectorTotals &totals) {
    return std::make_unique<EventSelector>(spec, p, rows, totals);
}

} // namespace seeddelta
