#include "runtime/say.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>

namespace seeddelta {

void say(std::string_view text) noexcept {
    static constexpr std::string_view kStart = "seeddelta: ";
    std::array<char, 2048> line{};
    char *at = std::copy(kStart.begin(), kStart.end(), line.data());
    text = text.substr(0, line.size() - kStart.size() - 1);
    at = std::transform(text.begin(), text.end(), at,
                        [](char c) { return static_cast<unsigned char>(c) < ' ' || c == 127 ? ' ' : c; });
    *at++ = '\n';
    static_cast<void>(!write(STDERR_FILENO, line.data(), static_cast<size_t>(at - line.data())));
}

} // namespace seeddelta
