// What fills a weight from the arrays of a file.
#pragma once
#include <stdexcept>

#include "seeddelta/make_weight.hpp"

namespace seeddelta {

struct Builder {
    const std::string &name;
    const WeightArrays &in;
    seeddelta_ctx &c;

    int64_t rows() const { return c.n_experts * c.n_out; }
    void require(bool holds, const std::string &what) const {
        if (!holds) {
            throw std::invalid_argument("tensor '" + name + "': " + what);
        }
    }

    // int8 values with their float16 scales, or float16 values, for the residual. names: of values and scales
    void set_values(const Array &value, const Array &scale, const char *const names[2],
                    std::initializer_list<int64_t> shape, std::initializer_list<int64_t> scale_shape) const {
        const bool half = value.item_size == 2;
        require_array(value, names[0], half ? "f" : "i", half ? 2 : 1, shape);
        if (half) {
            c.residual_vals_f16 = value.as<uint16_t>();
            return;
        }
        require(bool(scale), std::string("int8 ") + names[0] + " needs " + names[1]);
        require_array(scale, names[1], "f", 2, scale_shape);
        c.residual_vals_i8 = value.as<int8_t>();
        c.residual_scale = scale.as<uint16_t>();
    }
};

} // namespace seeddelta
