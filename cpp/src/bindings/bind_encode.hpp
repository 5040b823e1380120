// Checks that the encoders' bindings share.
#pragma once
#include <cmath>
#include <optional>
#include <string>

#include "bindings/arrays.hpp"

namespace seeddelta {

using OptionalVector = std::optional<FloatMatrix>;

inline void require_finite(const FloatMatrix &a, const char *name) {
    const float *data = a.data();
    for (py::ssize_t i = 0; i < a.size(); ++i) {
        if (!std::isfinite(data[i])) {
            throw py::value_error(std::string(name) + " has a NaN or an infinity at flat index " + std::to_string(i));
        }
    }
}

inline const float *importance_data(const OptionalVector &importance, int64_t n_in) {
    if (!importance) {
        return nullptr;
    }
    require_array(*importance, "importance", "f", 4, {n_in});
    require_finite(*importance, "importance");
    for (int64_t i = 0; i < n_in; ++i) {
        if (importance->data()[i] <= 0) {
            throw py::value_error("importance[" + std::to_string(i) + "] is not positive");
        }
    }
    return importance->data();
}

inline void require_rotation(int64_t block, int64_t n_in) {
    if (block != 0 && (block < 0 || (block & (block - 1)) != 0 || n_in % block != 0)) {
        throw py::value_error("rotation_block must be 0 or a power of two that divides n_in");
    }
}

inline bool prng_block_width(uint32_t block) {
    return block == 8 || block == 16 || block == 32 || block == 64;
}

} // namespace seeddelta
