// IEEE 754 half precision, by bits. The widening is exact for finite values and needs no instruction set.
#pragma once
#include <bit>
#include <cstdint>

namespace seeddelta {

static inline float half_to_float(uint16_t h) {
    // Shift exponent and mantissa into place, then multiply by 2^112 to move the exponent's bias: right for subnormals too.
    const float magnitude = std::bit_cast<float>(static_cast<uint32_t>(h & 0x7FFFU) << 13) * 0x1p112F;
    const uint32_t special = (h & 0x7C00U) == 0x7C00U ? 0x7F800000U : 0U;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | special | (static_cast<uint32_t>(h & 0x8000U) << 16));
}

// Rounds to nearest even; overflow gives infinity.
static inline uint16_t float_to_half(float f) {
    const uint32_t bits = std::bit_cast<uint32_t>(f);
    const uint32_t sign = (bits >> 16) & 0x8000U;
    const uint32_t magnitude = bits & 0x7FFFFFFFU;
    if (magnitude >= 0x7F800000U) {
        return static_cast<uint16_t>(sign | (magnitude > 0x7F800000U ? 0x7E00U : 0x7C00U));
    }
    if (magnitude >= 0x477FF000U) { // rounds to 2^16 or more
        return static_cast<uint16_t>(sign | 0x7C00U);
    }
    if (magnitude < 0x38800000U) { // subnormal half: adding 0.5 leaves the rounded mantissa in the low bits
        const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
        return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3F000000U));
    }
    const uint32_t odd = (magnitude >> 13) & 1U;
    return static_cast<uint16_t>(sign | ((magnitude - 0x38000000U + 0xFFFU + odd) >> 13));
}

} // namespace seeddelta
