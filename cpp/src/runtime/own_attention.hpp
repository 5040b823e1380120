// Attention of ours in one context of llama.cpp's own programs.
#pragma once
#include <array>
#include <string>

#include "ggml_host/attention_hook.hpp"
#include "runtime/llama_library.hpp"
#include "runtime/options.hpp"

namespace seeddelta {

// Counters of AttentionHook, in the order of kAttentionNames.
inline constexpr const char *kAttentionNames[] = {"nodes", "exact", "prompts", "left"};
using AttentionCounts = std::array<uint64_t, 4>;

class OwnAttention {
public:
    // Throws ModelFileError where this llama.cpp is not understood. `mode` is exact or automatic.
    OwnAttention(const LlamaLibrary &library, AttentionMode mode);

    AttentionHook &hook() { return hook_; }
    // After a graph was computed: empty, or why its result does not count.
    std::string wrong() const;
    void add_to(AttentionCounts &counts) const;

private:
    AttentionHook hook_;
    AttentionMode mode_;
};

} // namespace seeddelta
