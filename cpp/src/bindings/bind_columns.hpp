// The Python class ColumnWeight: a matrix stored by its inputs, and the arrays it points to.
#pragma once
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "gating/compose.hpp"
#include "seeddelta/columns.hpp"
#include "seeddelta/make_weight.hpp"

namespace seeddelta {

class PyColumnWeight {
public:
    std::string name;
    DenseColumns columns;
    const ColumnWeight &weight() const { return columns.weight(); }
};

// A GateSpec and the norms that it points to.
class PyGate {
public:
    GateSpec spec;
    std::vector<pybind11::object> keep;
};

// Limits of events by name; empty: none. Raises ValueError.
EventSpec event_of(const std::map<std::string, double> &options);

using OptionalGate = std::optional<const PyGate *>;

} // namespace seeddelta
