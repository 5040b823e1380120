// What the user and this llama.cpp say of all models that are not ours: llama.cpp computes them, but for their
// attention.
#pragma once
#include <memory>
#include <string>

#include "runtime/served_context.hpp"

namespace seeddelta {

// Outlives their contexts.
class OrdinaryModels {
public:
    // A line says what is wrong with the settings; then all is llama.cpp's. Throws std::bad_alloc.
    OrdinaryModels();

    const Options &options() const { return options_; }
    // What a scheduler is computed with; null: llama.cpp alone. `watched`: the program looks at nodes, which are to be
    // llama.cpp's as long as it does.
    std::unique_ptr<ServedContext> make(bool watched);
    // Empty, or why nothing may be computed: attention was to be ours and nothing else.
    std::string refusal(bool watched) const;

    Totals totals; // of contexts that are gone

private:
    Options options_;
    bool ours_ = false; // attention may be
    std::string why_not_;
};

} // namespace seeddelta
