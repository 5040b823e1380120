#include "runtime/options.hpp"

#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <string_view>

#include "gguf/error.hpp"

namespace seeddelta {

namespace {

constexpr std::string_view kPrefix = "SEEDDELTA_";
constexpr const char *kSet = "SEEDDELTA_SET: ";
// Of the instruction set, of the command-line program, of its server.
constexpr std::string_view kOthers[] = {"FORCE_ISA", "DEBUG", "API_KEY"};

// Words as a shell has them: blanks separate, quotes and backslashes keep them.
Names words_of(std::string_view text) {
    Names words;
    char quote = 0;
    bool inside = false;
    for (size_t i = 0; i < text.size(); ++i) {
        const char c = text[i];
        if (quote == 0 && (c == ' ' || c == '\t' || c == '\n')) {
            inside = false;
            continue;
        }
        if (!inside) {
            words.emplace_back();
            inside = true;
        }
        if (c == quote) {
            quote = 0;
        } else if (quote == 0 && (c == '\'' || c == '"')) {
            quote = c;
        } else {
            i += c == '\\' && quote != '\'' && i + 1 < text.size() ? 1 : 0;
            words.back() += text[i];
        }
    }
    if (quote != 0) {
        throw std::invalid_argument("a quote is not closed");
    }
    return words;
}

} // namespace

void Options::set(const std::string &name, const std::string &value) {
    constexpr std::string_view kKeys = "state_pack_kv";
    const GivenSetting given(name, value);
    if (name.starts_with(kKeys) && (name.size() == kKeys.size() || name[kKeys.size()] == '.')) {
        const std::string own = name.substr(std::min(name.size(), kKeys.size() + 1));
        if (given.set_in(state_pack_kv, own, StatePackKv::set)) {
            return;
        }
    }
    if (name == "gap") {
        gap = given.number();
    } else if (name == "fallback") {
        fallback = value;
    } else if (name == "dense") {
        dense = given.list();
    } else if (name == "statecells") {
        statecells = given.flag();
    } else if (name == "proc_sparse") {
        proc_sparse = given.flag();
    } else if (name == "columns") {
        columns = given.choice({"f16"}) == 0;
    } else if (name == "column_targets") {
        column_targets = given.list();
    } else if (name == "attention") {
        attention = static_cast<AttentionMode>(given.choice({"auto", "llama", "exact"}));
    } else if (!skipping.set(name, value)) {
        given.fail("this setting is not known, or not served in llama.cpp's programs; leave it out, or use "
                   "`seeddelta run` or `serve`");
    }
}

static bool has_patterns(const Values &values) {
    return values.size() != 1 || values.front().first != "*";
}

void Options::check() const {
    skipping.check();
    const auto refuse = [](bool there, const char *what) {
        if (there) {
            throw std::invalid_argument(std::string(what) + "; leave one of the two out");
        }
    };
    refuse(attention == AttentionMode::llama && chooses_keys(), "with attention=llama, llama.cpp attends to all keys");
    if (kwta_of_keys()) {
        const KwtaSettings &kwta = *skipping.kwta;
        refuse(events_of_keys(), "kwta and event both choose positions of the KV cache");
        refuse(state_pack_kv && state_pack_kv->exact(), "kwta.target=kv chooses keys, state_pack_kv.mode=exact all");
        refuse(kwta.file || kwta.gap_tol || (kwta.k && has_patterns(*kwta.k)),
               "kwta.target=kv takes one k or k_abs, no file and no gap");
    }
    if (events_of_keys()) {
        const EventSettings &event = *skipping.event;
        refuse(state_pack_kv && !state_pack_kv->exact(), "event.target=kv uses exact results, state_pack_kv bits");
        refuse(has_patterns(event.theta()) || has_patterns(event.topk) || event.block > 1,
               "event.target=kv takes one delta_theta and one topk, and no block");
    }
    if (skipping.state_pack_mlp && skipping.state_pack_mlp->aggressive && !columns) {
        throw std::invalid_argument("state_pack_mlp.aggressive is for an ordinary model by columns; give columns=f16");
    }
    if (column_targets.empty()) {
        throw std::invalid_argument("column_targets names no matrices; write all, ffn, attn or ffn_down");
    }
    static_cast<void>(attention_settings());
}

AttentionSettings Options::attention_settings() const {
    if (kwta_of_keys()) {
        const KwtaSettings &kwta = *skipping.kwta;
        std::optional<double> budget;
        if (kwta.k_abs > 0 || kwta.k) {
            budget = kwta.k_abs > 0 ? static_cast<double>(kwta.k_abs) : kwta.k->front().second;
        }
        return state_pack_kv.value_or(StatePackKv()).made(budget);
    }
    AttentionSettings found;
    found.pack.mode = PackMode::exact;
    if (state_pack_kv) {
        found = state_pack_kv->made();
    } else if (events_of_keys()) {
        StatePackKv all;
        StatePackKv::set(all, "mode", GivenSetting("mode", "exact"));
        found = all.made();
    }
    if (events_of_keys()) {
        const EventSettings &s = *skipping.event;
        found.event = s.made(s.theta().front().second, s.topk.front().second, 1.0);
    }
    return found;
}

std::string Options::asks_for_attention() const {
    return kwta_of_keys()                      ? "kwta.target=kv"
           : events_of_keys()                  ? "event.target=kv"
           : state_pack_kv                     ? "state_pack_kv"
           : attention == AttentionMode::exact ? "attention=exact"
                                               : "";
}

void Options::set_all(const std::string &words) {
    for (const std::string &word : words_of(words)) {
        const size_t equals = word.find('=');
        if (equals == std::string::npos || equals == 0) {
            throw std::invalid_argument(word + ": write NAME=VALUE, for example kwta.k=0.5");
        }
        set(word.substr(0, equals), word.substr(equals + 1));
    }
    check();
}

Options Options::of(const std::string &settings) {
    Options options;
    try {
        options.set_all(settings);
    } catch (const std::invalid_argument &error) {
        throw ModelFileError("settings: " + std::string(error.what()));
    }
    return options;
}

Options Options::from_environment() {
    Options options;
    for (char **entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
        std::string_view text(*entry);
        const size_t equals = text.find('=');
        if (!text.starts_with(kPrefix) || equals == std::string_view::npos || equals + 1 == text.size()) {
            continue;
        }
        const std::string_view name = text.substr(kPrefix.size(), equals - kPrefix.size());
        const std::string value(text.substr(equals + 1));
        try {
            if (name == "SET") {
                options.set_all(value);
            } else if (name == "METRICS_JSON") {
                options.metrics_json = value;
            } else if (name == "VERBOSE") {
                options.verbose = GivenSetting("SEEDDELTA_VERBOSE", value).flag();
            } else if (std::find(std::begin(kOthers), std::end(kOthers), name) == std::end(kOthers)) {
                throw ModelFileError(std::string(text.substr(0, equals)) +
                                     ": is not read in llama.cpp's programs; settings are in SEEDDELTA_SET, in the "
                                     "names of --set");
            }
        } catch (const std::invalid_argument &error) {
            throw ModelFileError((name == "SET" ? kSet : "") + std::string(error.what()));
        }
    }
    return options;
}

} // namespace seeddelta
