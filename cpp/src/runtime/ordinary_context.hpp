// Contexts with models that are not ours: llama.cpp computes them, but for their attention.
#pragma once
#include <memory>
#include <optional>
#include <string>

#include "runtime/options.hpp"
#include "runtime/own_attention.hpp"
#include "runtime/served_context.hpp"

namespace seeddelta {

// One scheduler, and so one context.
class OrdinaryContext {
public:
    // Adds what was done to `totals` when it ends. Throws ModelFileError.
    OrdinaryContext(const LlamaLibrary &library, AttentionMode mode, AttentionCounts &totals);
    ~OrdinaryContext();
    OrdinaryContext(const OrdinaryContext &) = delete;
    OrdinaryContext &operator=(const OrdinaryContext &) = delete;

    // As that of ServedContext. Throws std::bad_alloc.
    int compute(void *scheduler, void *graph, ComputeGraph real);
    void add_to(AttentionCounts &counts) const { attention_.add_to(counts); }

private:
    const LlamaLibrary &library_;
    OwnAttention attention_;
    AttentionCounts &totals_;
};

// What the user and this llama.cpp say of all of them. Outlives them.
class OrdinaryModels {
public:
    // A line says what is wrong with the settings; then all is llama.cpp's. Throws std::bad_alloc.
    OrdinaryModels();

    const std::string &metrics_json() const { return options_.metrics_json; }
    // What a scheduler is computed with; null: llama.cpp alone. `watched`: the program looks at nodes, which are to be
    // llama.cpp's as long as it does.
    std::unique_ptr<OrdinaryContext> make(bool watched);
    // Empty, or why nothing may be computed: attention was to be ours and nothing else.
    std::string refusal(bool watched) const;

    AttentionCounts totals{}; // of contexts that are gone

private:
    Options options_;
    const LlamaLibrary *library_ = nullptr; // null: attention is llama.cpp's
    std::string why_not_;
};

} // namespace seeddelta
