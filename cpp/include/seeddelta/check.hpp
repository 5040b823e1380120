// What an array of a file may hold. Kernels index by it without looking again.
#pragma once
#include <string>

#include "seeddelta/weight.hpp"

namespace seeddelta {

// Empty when every number that leads somewhere stays inside of its array and every row scale is finite; else what is
// wrong, without the name of the tensor. The arrays must have the shapes that weight.hpp gives. Reads each array once.
std::string check_contents(const seeddelta_ctx &ctx);

// The same of n row scales.
std::string check_row_scale(const seeddelta_ctx &ctx, int64_t n);

} // namespace seeddelta
