// What the attention hook tells of its layers.
#include <algorithm>

#include "format/counter.hpp"
#include "ggml_host/attention_hook.hpp"

namespace seeddelta {

static constexpr float kGapShare = 0.25F; // of a comparison in a layer's moving mean

// What others may read meanwhile is written under the lock, once an operation.
void AttentionHook::settle(Node &node) {
    const std::lock_guard lock(mutex_);
    Layer &layer = *node.layer;
    if (!node.packed) {
        count(node.events ? counters_.events : counters_.exact);
        if (layer.events != nullptr) {
            layer.told = {!layer.events->limits().disabled(), layer.events->limits().gap(), layer.events->last_ns(),
                          layer.events->nbytes(), layer.events->limits().given_up()};
        }
        return;
    }
    PackOutcome &outcome = node.outcome;
    count(counters_.packed);
    count(counters_.repacks, node.repack ? 1 : 0);
    count(counters_.visible, outcome.visible.exchange(0));
    count(counters_.kept, outcome.kept.exchange(0));
    const uint64_t scored = outcome.scored.exchange(0);
    count(counters_.scored, scored);
    count(counters_.popcount, layer.settings.popcount ? scored : 0);
    count(counters_.values, outcome.values.exchange(0));
    count(counters_.dense, outcome.dense.exchange(0));
    outcome.unpacked.store(0);
    const bool stale = outcome.stale.exchange(false);
    count(counters_.stale, stale ? 1 : 0);
    for (size_t head = 0; head < layer.heads.size(); ++head) {
        HeadOutcome &of = outcome.heads[head];
        if (stale) { // the result was exact
            of.compared = 0;
            of.gap = of.recall = 0.0;
        }
        layer.heads[head] += of;
    }
    if (!outcome.compared) {
        return;
    }
    outcome.compared = false;
    if (stale) {
        return;
    }
    count(counters_.compared);
    gap_sum_ += outcome.gap;
    recall_sum_ += outcome.recall;
    const auto gap = static_cast<float>(outcome.gap);
    layer.gap = layer.gap < 0.0F ? gap : layer.gap + kGapShare * (gap - layer.gap);
    if (!(layer.gap <= settings_.gap_limit)) { // also when it is no number
        layer.disabled = true;
        count(counters_.disabled);
    }
}

int64_t AttentionHook::pack_bytes() const {
    const std::lock_guard lock(mutex_);
    int64_t sum = 0;
    for (const auto &[place, layer] : layers_) {
        sum += layer.pack != nullptr ? layer.pack->nbytes() : 0;
    }
    return sum;
}

std::vector<AttentionHook::HeadTotal> AttentionHook::heads() const {
    const std::lock_guard lock(mutex_);
    std::vector<HeadTotal> found;
    for (const auto &[place, layer] : layers_) {
        for (size_t head = 0; head < layer.heads.size(); ++head) {
            const auto kv_head = static_cast<int64_t>(head);
            found.push_back({layer.number, kv_head, layer.settings.exact(kv_head), layer.settings.budget_of(kv_head),
                             layer.heads[head]});
        }
    }
    return found;
}

AttentionHook::EventTotal AttentionHook::event_total() const {
    const std::lock_guard lock(mutex_);
    EventTotal sum;
    for (const auto &[place, layer] : layers_) {
        if (layer.events != nullptr) {
            ++sum.layers;
            sum.active += layer.told.active ? 1 : 0;
            sum.given_up += layer.told.given_up ? 1 : 0;
            sum.gap = std::max(sum.gap, layer.told.gap);
            sum.last_ns += layer.told.last_ns;
            sum.bytes += layer.told.bytes;
        }
    }
    return sum;
}

int64_t AttentionHook::packed_layers() const {
    const std::lock_guard lock(mutex_);
    int64_t sum = 0;
    for (const auto &[place, layer] : layers_) {
        sum += layer.pack != nullptr && !layer.disabled ? 1 : 0;
    }
    return sum;
}

} // namespace seeddelta
