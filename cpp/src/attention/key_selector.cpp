#include "attention/key_selector.hpp"

#include <algorithm>

namespace seeddelta {

// The last override that names a head holds for it. What differs among the heads of a layer is in `heads`.
PackSettings pack_settings_of(const AttentionSettings &settings, int64_t layer, int64_t n_kv_head,
                              std::pair<int64_t, int64_t> &missing) {
    PackSettings found = settings.pack;
    std::vector<PackMode> modes(static_cast<size_t>(n_kv_head), found.mode);
    found.heads.assign(modes.size(), {false, found.budget});
    for (const LayerOverride &other : settings.layers) {
        if (settings.pack.mode == PackMode::exact || layer < other.first || layer > other.last) {
            continue;
        }
        if (other.last_head >= n_kv_head) {
            missing = {layer, other.last_head};
        }
        const int64_t last = other.first_head < 0 ? n_kv_head - 1 : std::min(other.last_head, n_kv_head - 1);
        for (auto head = static_cast<size_t>(std::max<int64_t>(other.first_head, 0)); head <= static_cast<size_t>(last);
             ++head) {
            modes[head] = other.mode;
            found.heads[head] = {other.mode == PackMode::exact, other.budget};
        }
    }
    found.mode = PackMode::exact;
    bool alike = true;
    for (size_t head = 0; head < modes.size(); ++head) {
        found.mode = modes[head] != PackMode::exact ? modes[head] : found.mode;
        alike = alike && modes[head] == modes[0] && found.heads[head].budget == found.heads[0].budget;
    }
    if (alike) {
        found.budget = found.heads[0].budget;
        found.heads.clear();
    }
    return found;
}

std::unique_ptr<KeySelector> make_selector(const AttentionSettings &settings, int64_t layer, const AttentionProblem &p,
                                           int64_t rows, SelectorTotals &totals,
                                           std::pair<int64_t, int64_t> &missing_head) {
    PackSettings of_layer = pack_settings_of(settings, layer, p.n_kv_head, missing_head);
    if (of_layer.mode != PackMode::exact) {
        return pack_selector(settings, std::move(of_layer), layer, p, rows, totals);
    }
    return settings.event.enabled ? event_selector(settings.event, p, rows, totals) : nullptr;
}

} // namespace seeddelta
