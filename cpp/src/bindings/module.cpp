// Table of contents of the extension module.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "seeddelta/isa.hpp"

namespace py = pybind11;

namespace seeddelta {
void bind_encode(py::module_ &m);
void bind_encode_lanes(py::module_ &m);
void bind_weight(py::module_ &m);
void bind_columns(py::module_ &m);
void bind_runtime(py::module_ &m);
void bind_capture(py::module_ &m);
void bind_served(py::module_ &m);
void bind_kinds(py::module_ &m);
} // namespace seeddelta

PYBIND11_MODULE(_core, m) {
    m.doc() = "Compiled core of seeddelta: encoders, kernels and the graph hook.";
    m.attr("__version__") = SEEDDELTA_VERSION;
    m.def("isa_available", &seeddelta::isa_available, "Instruction sets that this machine can run, slowest first.");
    m.def("isa_active", &seeddelta::isa_active, "The instruction set in use.");
    m.def("isa_select", &seeddelta::isa_select, py::arg("name"),
          "Uses another instruction set from now on; ValueError if this machine cannot run it.");
    seeddelta::bind_encode(m);
    seeddelta::bind_columns(m); // whose gates weights take
    seeddelta::bind_weight(m);
    seeddelta::bind_encode_lanes(m);
    seeddelta::bind_runtime(m);
    seeddelta::bind_capture(m);
    seeddelta::bind_served(m);
    seeddelta::bind_kinds(m);
}
