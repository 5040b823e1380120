// What a user says by variables of the environment.
#pragma once
#include <optional>
#include <string>

#include "attention/settings.hpp"

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
    bool columns = false; // an ordinary model's matrices are stored by columns, as float16
    Names column_targets = {"all"};
    SkipSettings skipping;
    AttentionMode attention = AttentionMode::automatic;
    std::optional<StatePackKv> state_pack_kv;

    std::string metrics_json; // SEEDDELTA_METRICS_JSON; empty: none
    bool verbose = false;     // SEEDDELTA_VERBOSE

    // Whether keys are chosen by their bits, or what has changed of them, and how.
    AttentionSettings attention_settings() const;
    // The setting that wants attention to be ours and nothing else; empty: none.
    std::string asks_for_attention() const;
    // Whether what is done follows the tokens of one sequence, so that a context may have one only.
    bool of_one_sequence() const { return chooses_keys(); }

    // One setting by its full name. Throws std::invalid_argument for a value that cannot be, or no such setting.
    void set(const std::string &name, const std::string &value);
    // Throws std::invalid_argument for settings that contradict each other.
    void check() const;
    // Throws ModelFileError for a value that cannot be, and for a setting or a variable SEEDDELTA_… of something that
    // is not served in llama.cpp's programs.
    static Options from_environment();
    // Of a text as SEEDDELTA_SET has it.
    static Options of(const std::string &settings);

private:
    bool kwta_of_keys() const { return skipping.kwta && !skipping.kwta->of_inputs(); }
    bool events_of_keys() const { return skipping.event && !skipping.event->of_inputs(); }
    bool chooses_keys() const { return state_pack_kv || kwta_of_keys() || events_of_keys(); }
    void set_all(const std::string &words);
};

} // namespace seeddelta
