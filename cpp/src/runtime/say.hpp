// What is told to the user of a program: lines on stderr.
#pragma once
#include <initializer_list>
#include <string_view>

namespace seeddelta {

// `seeddelta: ` and the parts, in one line and one piece; signs of control are left out. Allocates nothing.
void say(std::initializer_list<std::string_view> parts) noexcept;

} // namespace seeddelta
