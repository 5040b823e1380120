#include "runtime/options.hpp"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iterator>
#include <string_view>

#include "gguf/error.hpp"

namespace seeddelta {

namespace {

constexpr std::string_view kPrefix = "SEEDDELTA_";
// Of the instruction set, of the command-line program, of its server.
constexpr std::string_view kOthers[] = {"FORCE_ISA", "DEBUG", "API_KEY"};

bool on_or_off(const std::string &name, const std::string &value) {
    for (const char *yes : {"1", "on", "true", "yes"}) {
        if (value == yes) {
            return true;
        }
    }
    for (const char *no : {"0", "off", "false", "no"}) {
        if (value == no) {
            return false;
        }
    }
    throw ModelFileError(name + "=" + value + ": write on or off");
}

std::vector<std::string> listed(const std::string &text) {
    std::vector<std::string> items;
    for (size_t at = 0; at <= text.size();) {
        const size_t end = std::min(text.find(',', at), text.size());
        if (end > at) {
            items.push_back(text.substr(at, end - at));
        }
        at = end + 1;
    }
    return items;
}

double number(const std::string &name, const std::string &value) {
    char *end = nullptr;
    const double found = std::strtod(value.c_str(), &end);
    if (*end != '\0' || !std::isfinite(found)) {
        throw ModelFileError(name + "=" + value + ": write a number");
    }
    return found;
}

void set(Options &options, std::string_view name, const std::string &value) {
    const std::string full = std::string(kPrefix) + std::string(name);
    if (name == "GAP") {
        options.gap = number(full, value);
    } else if (name == "FALLBACK") {
        options.fallback = value;
    } else if (name == "DENSE") {
        options.dense = listed(value);
    } else if (name == "STATECELLS") {
        options.statecells = on_or_off(full, value);
    } else if (name == "PROC_SPARSE") {
        options.proc_sparse = on_or_off(full, value);
    } else if (name == "METRICS_JSON") {
        options.metrics_json = value;
    } else if (name == "VERBOSE") {
        options.verbose = on_or_off(full, value);
    } else if (std::find(std::begin(kOthers), std::end(kOthers), name) == std::end(kOthers)) {
        throw ModelFileError(full + ": is not served in llama.cpp's programs; unset it, or use `seeddelta run`");
    }
}

} // namespace

Options Options::from_environment() {
    Options options;
    for (char **entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
        const std::string_view text(*entry);
        const size_t equals = text.find('=');
        if (text.starts_with(kPrefix) && equals != std::string_view::npos && equals + 1 < text.size()) {
            set(options, text.substr(kPrefix.size(), equals - kPrefix.size()), std::string(text.substr(equals + 1)));
        }
    }
    return options;
}

} // namespace seeddelta
