// Guards of mapped files for Python.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include "bindings/arrays.hpp"
#include "ggml_host/file_guard.hpp"

namespace seeddelta {

namespace {

// The mapping outlives the guard: members go in reverse order.
struct PyFileGuard {
    PyFileGuard(int fd, const py::array &mapping)
        : data(mapping), guard(fd, mapping.data(), static_cast<size_t>(mapping.nbytes())) {}
    py::array data;
    FileGuard guard;
};

} // namespace

void bind_file_guard(py::module_ &m) {
    py::class_<PyFileGuard>(
        m, "FileGuard",
        "Watches a mapped file: `data` is uint8 [bytes], all of it, and `fd` the file's descriptor, which may be\n"
        "closed afterwards. Pages that are gone because the file was made shorter are zeros from then on, in place of "
        "a\n"
        "SIGBUS. Keeps the mapping. Raises RuntimeError when the file cannot be asked for its state.")
        .def(py::init<int, const py::array &>(), py::arg("fd"), py::arg("data"))
        .def_property_readonly(
            "intact", [](const PyFileGuard &g) { return g.guard.intact(); },
            "False once a page was gone, or when the file has another size or time of change than in the beginning.");
}

} // namespace seeddelta
