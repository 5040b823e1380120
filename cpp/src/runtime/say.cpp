#include "runtime/say.hpp"

#include <unistd.h>

#include <array>

namespace seeddelta {

void say(std::initializer_list<std::string_view> parts) noexcept {
    std::array<char, 2048> line{};
    size_t size = 0;
    const auto add = [&](std::string_view text) {
        for (const char c : text.substr(0, line.size() - 1 - size)) {
            line[size++] = static_cast<unsigned char>(c) < ' ' || c == 127 ? ' ' : c;
        }
    };
    add("seeddelta: ");
    for (const std::string_view part : parts) {
        add(part);
    }
    line[size++] = '\n';
    static_cast<void>(!write(STDERR_FILENO, line.data(), size));
}

} // namespace seeddelta
