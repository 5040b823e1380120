// Checked views of NumPy arrays: the dtype and shape are validated here, once, before anything looks at the data.
#pragma once
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>

#include "format/parallel.hpp"
#include "seeddelta/make_weight.hpp"

namespace seeddelta {
namespace py = pybind11;

// Raises ValueError, which names the tensor where there is one.
inline void require(bool holds, const std::string &name, const std::string &what) {
    if (!holds) {
        throw py::value_error((name.empty() ? "" : "tensor '" + name + "': ") + what);
    }
}

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

// Settings by their names; values are as Python prints them, on and off of switches.
using Settings = std::map<std::string, py::object>;

// Calls set(name, text) for each, which returns false where there is no such setting.
template <class Set>
void set_all(const Settings &settings, const Set &set) {
    for (const auto &[name, value] : settings) {
        if (!set(name, std::string(py::str(value)))) {
            throw py::value_error("there is no setting " + name);
        }
    }
}

using FloatMatrix = py::array_t<float, py::array::c_style | py::array::forcecast>;

} // namespace seeddelta
