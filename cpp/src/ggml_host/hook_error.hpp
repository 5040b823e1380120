// What is wrong with a graph, or with what was computed in it.
#pragma once
#include <string>

namespace seeddelta {

enum class HookErrorKind : int { none = 0, not_served, layout, not_finite, dense_not_finite, bad_index, no_memory };

struct HookError {
    HookErrorKind kind = HookErrorKind::none;
    std::string tensor;
    std::string detail;

    // For people, in one line with the remedy, where there is one.
    std::string text() const;
};

// A remedy.
inline constexpr const char *kGiveFallback =
    "give the original model as fallback (--seeddelta-fallback model.gguf, or fallback=model.gguf in SEEDDELTA_SET)";

} // namespace seeddelta
