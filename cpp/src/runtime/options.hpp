// What a user says by variables of the environment.
#pragma once
#include <optional>
#include <string>

#include "gating/settings.hpp"

namespace seeddelta {

// Who computes attention: we where we can, llama.cpp, or we and nobody else.
enum class AttentionMode { automatic, llama, exact };

struct Options {
    // SEEDDELTA_SET: settings of the run time in the names of --set, as words of a shell: gap=0.1 kwta.k=0.5
    std::optional<double> gap;
    std::string fallback;    // empty: none
    Names dense;             // shell patterns
    bool statecells = false; // a model without them is refused
    bool proc_sparse = true;
    SkipSettings skipping;
    AttentionMode attention = AttentionMode::automatic;

    std::string metrics_json; // SEEDDELTA_METRICS_JSON; empty: none
    bool verbose = false;     // SEEDDELTA_VERBOSE

    // Throws ModelFileError for a value that cannot be, and for a setting or a variable SEEDDELTA_… of something that
    // is not served in llama.cpp's programs.
    static Options from_environment();
    // Of a text as SEEDDELTA_SET has it.
    static Options of(const std::string &settings);

private:
    void set(const std::string &assignment);
    void set_all(const std::string &words);
    void check() const;
};

} // namespace seeddelta
