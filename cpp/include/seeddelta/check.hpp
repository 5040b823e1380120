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

// Range of rates of a trellis: k bits for one value (1 .. 6) or for two (3, 5).
bool trellis_rate_supported(int step_bits, int values_per_step);

} // namespace seeddelta
