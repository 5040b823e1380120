// What is told to the user of a program: lines on stderr.
#pragma once
#include <string_view>

namespace seeddelta {

// `seeddelta: text`, in one line and one piece; signs of control are left out. Never fails.
void say(std::string_view text) noexcept;

} // namespace seeddelta
