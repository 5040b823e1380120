// Attention of ours in one context.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "gating/counts.hpp"
#include "ggml_host/attention_hook.hpp"
#include "ggml_host/loaded_ggml.hpp"
#include "runtime/options.hpp"

namespace seeddelta {

class OwnAttention {
public:
    // Throws AbiProbeError where this llama.cpp is not understood.
    OwnAttention(const LoadedGgml &ggml, const Options &options);

    AttentionHook &hook() { return hook_; }
    // Whether llama.cpp may compute what does not fit.
    bool automatic() const { return must_.empty(); }
    // After a graph was computed: empty, or why its result does not count; and whether the settings are wrong.
    std::string wrong(bool &settings);

private:
    AttentionHook hook_;
    std::string must_; // the setting that asks for it
    bool proven_ = false;
};

// What attention did in contexts, added up; what it has now is of the last one.
struct AttentionTotals {
    Counters<AttentionCount> nodes;
    Counters<PackCount> pack;
    EventCounters events;
    double gap_sum = 0.0, recall_sum = 0.0;
    SelectorReport now;
    std::optional<AttentionSettings> settings; // none: it was not ours

    void add(const AttentionHook &hook);
    // attention.*, and where keys are chosen pack.* (`of_both`: pack.kv.*) and event.*.
    std::vector<Metric> metrics(bool of_both) const;
};

} // namespace seeddelta
