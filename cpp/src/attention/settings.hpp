// Settings of StatePack of the KV cache, in the names of the tree in python/seeddelta/settings/attention.py, which says
// what each of them does.
#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "attention/key_selector.hpp"
#include "gating/settings.hpp"

namespace seeddelta {

class StatePackKv {
public:
    // One setting by its own name, such as budget. False when there is none. Throws std::invalid_argument.
    static bool set(StatePackKv &s, std::string_view name, const GivenSetting &given);

    bool exact() const { return pack_.mode == PackMode::exact; }
    // With another budget. Throws std::invalid_argument for layers that cannot be.
    AttentionSettings made(std::optional<double> budget = std::nullopt) const;

private:
    static PackSettings ternary() {
        PackSettings pack;
        pack.mode = PackMode::ternary;
        return pack;
    }
    PackSettings pack_ = ternary();
    std::string layers_ = "0-1=exact";
    int64_t min_context_ = 1024, gap_every_ = 64;
    float gap_limit_ = 0.3F;
};

} // namespace seeddelta
