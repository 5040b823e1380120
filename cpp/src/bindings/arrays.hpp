// Checked views of NumPy arrays: the dtype and shape are validated here, once, before anything looks at the data.
#pragma once
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <initializer_list>
#include <sstream>
#include <string>

namespace seeddelta {
namespace py = pybind11;

inline std::string shape_text(const py::array &a) {
    std::ostringstream text;
    text << '[';
    for (py::ssize_t i = 0; i < a.ndim(); ++i) {
        text << (i ? ", " : "") << a.shape(i);
    }
    text << ']';
    return text.str();
}

// Throws ValueError unless `a` is C-contiguous and aligned to its items, has the item size and one of the kinds ("f",
// "iu"), and the shape.
// -1 accepts any length.
inline void require_array(const py::array &a, const char *name, const char *kinds, py::ssize_t item_size,
                          std::initializer_list<int64_t> shape) {
    const char kind = a.dtype().kind();
    std::ostringstream wrong;
    if (std::string(kinds).find(kind) == std::string::npos || a.itemsize() != item_size) {
        wrong << "dtype " << py::str(a.dtype()).cast<std::string>();
    } else if ((a.flags() & py::array::c_style) == 0) {
        wrong << "a layout that is not C-contiguous";
    } else if (reinterpret_cast<uintptr_t>(a.data()) % static_cast<uintptr_t>(item_size) != 0) {
        wrong << "an address that is not a multiple of its item size";
    } else {
        bool fits = a.ndim() == static_cast<py::ssize_t>(shape.size());
        py::ssize_t i = 0;
        for (const int64_t n : shape) {
            fits = fits && (n < 0 || a.shape(i) == n);
            ++i;
        }
        if (fits) {
            return;
        }
        wrong << "shape " << shape_text(a);
    }
    std::ostringstream wanted;
    for (const int64_t n : shape) {
        wanted << (wanted.tellp() > 0 ? ", " : "") << (n < 0 ? std::string("n") : std::to_string(n));
    }
    throw py::value_error(std::string(name) + " has " + wrong.str() + "; wanted " + kinds + std::to_string(8 * item_size) + " [" +
                          wanted.str() + "]");
}

using FloatMatrix = py::array_t<float, py::array::c_style | py::array::forcecast>;

} // namespace seeddelta
