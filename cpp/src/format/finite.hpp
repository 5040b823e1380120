// Whether numbers are finite.
#pragma once
#include <bit>
#include <cstdint>

namespace seeddelta {

// One comparison and one "or" a number, which every instruction set has for several at a time; a maximum has not.
inline bool all_finite(const float *x, int64_t n) {
    constexpr uint32_t exponent = 0x7F800000U;
    uint32_t bad = 0;
    for (int64_t i = 0; i < n; ++i) {
        bad |= (std::bit_cast<uint32_t>(x[i]) & exponent) == exponent ? 1U : 0U;
    }
    return bad == 0;
}

} // namespace seeddelta
