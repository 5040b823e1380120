// Checked views of NumPy arrays: the dtype and shape are validated here, once, before anything looks at the data.
#pragma once
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>

#include "seeddelta/make_weight.hpp"

namespace seeddelta {
namespace py = pybind11;

// For the checks of make_weight.hpp. Borrowed.
inline Array view_of(const py::array &a) {
    const bool native = a.itemsize() == 1 || a.dtype().byteorder() == '=';
    return {.data = a.data(),
            .kind = native ? a.dtype().kind() : '>', // no array here has another byte order
            .item_size = a.itemsize(),
            .shape = {a.shape(), a.shape() + a.ndim()},
            .contiguous = (a.flags() & py::array::c_style) != 0};
}

inline Array view_of(const std::optional<py::array> &a) {
    return a ? view_of(*a) : Array{};
}

inline std::string shape_text(const py::array &a) {
    return view_of(a).shape_text();
}

inline void require_array(const py::array &a, const char *name, const char *kinds, py::ssize_t item_size,
                          std::initializer_list<int64_t> shape) {
    require_array(view_of(a), name, kinds, item_size, shape);
}

using FloatMatrix = py::array_t<float, py::array::c_style | py::array::forcecast>;

} // namespace seeddelta
