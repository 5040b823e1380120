// IEEE 754 half precision, by bits. The widening is exact for finite values and needs no instruction set.
#pragma once
#include <bit>
#include <cstdint>

namespace seeddelta {

static inline float half_to_float(uint16_t h) {
    // Exponent and mantissa are shifted into place and the exponent's bias moved; a subnormal is its mantissa as a
    // number. No float here is subnormal, so that a process that takes those for zero gets the same bits.
    const uint32_t bits = h & 0x7FFFU;
    const uint32_t normal = (bits << 13) + (bits >= 0x7C00U ? 0x70000000U : 0x38000000U);
    const uint32_t small = std::bit_cast<uint32_t>(static_cast<float>(static_cast<int32_t>(bits)) * 0x1p-24F);
    return std::bit_cast<float>((bits < 0x0400U ? small : normal) | (static_cast<uint32_t>(h & 0x8000U) << 16));
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
