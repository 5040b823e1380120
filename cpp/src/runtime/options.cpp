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

void Options::set(const std::string &assignment) {
    const size_t equals = assignment.find('=');
    if (equals == std::string::npos || equals == 0) {
        throw std::invalid_argument(assignment + ": write NAME=VALUE, for example kwta.k=0.5");
    }
    const std::string name = assignment.substr(0, equals), value = assignment.substr(equals + 1);
    const GivenSetting given(name, value);
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
    } else if (name == "attention") {
        attention = static_cast<AttentionMode>(given.choice({"auto", "llama", "exact"}));
    } else if (!skipping.set(name, value)) {
        given.fail("this setting is not known, or not served in llama.cpp's programs; leave it out, or use "
                   "`seeddelta run` or `serve`");
    }
}

void Options::check() const {
    skipping.check();
    const auto refuse = [](const char *what) {
        throw std::invalid_argument(std::string(what) +
                                    " is not served in llama.cpp's programs; leave it out, or use `seeddelta run`");
    };
    if (skipping.kwta && !skipping.kwta->of_inputs()) {
        refuse("kwta.target=kv");
    }
    if (skipping.event && !skipping.event->of_inputs()) {
        refuse("event.target=kv");
    }
    if (skipping.state_pack_mlp && skipping.state_pack_mlp->aggressive) {
        refuse("state_pack_mlp.aggressive, which needs columns=f16,");
    }
}

void Options::set_all(const std::string &words) {
    for (const std::string &word : words_of(words)) {
        set(word);
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
