#include "runtime/own_attention.hpp"

namespace seeddelta {

static AttentionSettings all_keys() {
    AttentionSettings settings;
    settings.pack.mode = PackMode::exact;
    return settings;
}

OwnAttention::OwnAttention(const LlamaLibrary &library, AttentionMode mode)
    : hook_(library.abi(), library.attention(), all_keys()), mode_(mode) {}

std::string OwnAttention::wrong() const {
    if (hook_.in_pieces()) {
        return "a graph was computed in pieces, with the attention of a token in two of them; use attention=llama";
    }
    const AttentionCounters &c = hook_.counters();
    if (mode_ == AttentionMode::exact && c.left.load() > 0 && c.nodes.load() == 0) {
        return std::string("attention=exact: attention of this model cannot be taken over: ") + hook_.left_because();
    }
    return {};
}

void OwnAttention::add_to(AttentionCounts &counts) const {
    const AttentionCounters &c = hook_.counters();
    const AttentionCounts own = {c.nodes.load(), c.exact.load(), c.prompts.load(), c.left.load()};
    for (size_t i = 0; i < own.size(); ++i) {
        counts[i] += own[i];
    }
}

} // namespace seeddelta
