#include <algorithm>
#include <cmath>
#include <limits>
#include <locale>
#include <sstream>
#include <stdexcept>

#include "gating/settings.hpp"

namespace seeddelta {

namespace {

std::string shown(double value) {
    std::ostringstream out;
    out.imbue(std::locale::classic());
    out << value;
    return out.str();
}

std::string trimmed(std::string_view text) {
    const size_t begin = text.find_first_not_of(" \t");
    return begin == text.npos ? "" : std::string(text.substr(begin, text.find_last_not_of(" \t") + 1 - begin));
}

} // namespace

void GivenSetting::fail(const std::string &what) const {
    throw std::invalid_argument(name_ + "=" + value_ + ": " + what);
}

double GivenSetting::parse(const std::string &text) const {
    std::istringstream in(text);
    in.imbue(std::locale::classic());
    double found = 0.0;
    if (!(in >> found) || in.peek() != std::istringstream::traits_type::eof() || !std::isfinite(found)) {
        fail("write a number");
    }
    return found;
}

double GivenSetting::in_range(double found, double least, double most, bool open) const {
    if (found < least || found > most || (open && found == least)) {
        const bool limited = most < std::numeric_limits<double>::max();
        fail("must be " + std::string(open ? "above " : "at least ") + shown(least) +
             (limited ? (open ? " and at most " : " and at most ") + shown(most) : ""));
    }
    return found;
}

double GivenSetting::number() const {
    return parse(value_);
}

double GivenSetting::number(double least, double most, bool open) const {
    return in_range(parse(value_), least, most, open);
}

int64_t GivenSetting::whole(int64_t least) const {
    constexpr size_t kDigits = 18;
    if (value_.empty() || value_.find_first_not_of("0123456789") != std::string::npos || value_.size() > kDigits) {
        fail("write a whole number");
    }
    const int64_t found = std::stoll(value_);
    if (found < least) {
        fail("must be at least " + std::to_string(least));
    }
    return found;
}

bool GivenSetting::flag() const {
    for (const char *yes : {"1", "on", "true", "yes"}) {
        if (value_ == yes) {
            return true;
        }
    }
    for (const char *no : {"0", "off", "false", "no"}) {
        if (value_ == no) {
            return false;
        }
    }
    fail("write on or off");
}

size_t GivenSetting::choice(std::initializer_list<std::string_view> choices) const {
    const auto *found = std::find(choices.begin(), choices.end(), value_);
    if (found == choices.end()) {
        std::string all;
        for (const std::string_view one : choices) {
            all += (all.empty() ? "" : ", ") + std::string(one);
        }
        fail("choose from " + all);
    }
    return static_cast<size_t>(found - choices.begin());
}

int GivenSetting::block() const {
    constexpr int kBlocks[] = {1, 16, 32, 64};
    return kBlocks[choice({"1", "16", "32", "64"})];
}

Target GivenSetting::target(bool with_kv) const {
    return static_cast<Target>(with_kv ? choice({"mlp", "attn", "both", "kv"}) : choice({"mlp", "attn", "both"}));
}

Names GivenSetting::list() const {
    Names items;
    for (size_t at = 0; at <= value_.size();) {
        const size_t end = std::min(value_.find(',', at), value_.size());
        if (std::string item = trimmed(std::string_view(value_).substr(at, end - at)); !item.empty()) {
            items.push_back(std::move(item));
        }
        at = end + 1;
    }
    return items;
}

Values GivenSetting::values(double least, double most, bool open) const {
    if (value_.find('=') == std::string::npos) {
        return {{"*", number(least, most, open)}};
    }
    Values found;
    for (const std::string &item : list()) {
        const size_t equals = item.find('=');
        const std::string pattern = equals == item.npos ? "*" : trimmed(std::string_view(item).substr(0, equals));
        const double value = in_range(parse(equals == item.npos ? item : item.substr(equals + 1)), least, most, open);
        const auto same =
            std::find_if(found.begin(), found.end(), [&](const auto &one) { return one.first == pattern; });
        if (same == found.end()) {
            found.emplace_back(pattern, value);
        } else {
            same->second = value; // as in Python's dict, it stays where it was
        }
    }
    return found;
}

} // namespace seeddelta
