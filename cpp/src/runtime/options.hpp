// What a user says by variables of the environment, in the names of the flags of `seeddelta run`.
#pragma once
#include <optional>
#include <string>
#include <vector>

namespace seeddelta {

struct Options {
    std::optional<double> gap;      // SEEDDELTA_GAP
    std::string fallback;           // SEEDDELTA_FALLBACK; empty: none
    std::vector<std::string> dense; // SEEDDELTA_DENSE, shell patterns
    bool statecells = false;        // SEEDDELTA_STATECELLS: a model without them is refused
    bool proc_sparse = true;        // SEEDDELTA_PROC_SPARSE
    std::string metrics_json;       // SEEDDELTA_METRICS_JSON; empty: none
    bool verbose = false;           // SEEDDELTA_VERBOSE

    // Throws ModelFileError for a value that cannot be, and for a variable SEEDDELTA_… of something that is not served
    // in llama.cpp's programs.
    static Options from_environment();
};

} // namespace seeddelta
