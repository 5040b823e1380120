// The Python class ColumnWeight: a matrix stored by its inputs, and the arrays it points to.
#pragma once
#include <pybind11/stl.h>

#include <optional>
#include <string>
#include <vector>

#include "bindings/arrays.hpp"
#include "gating/plan.hpp"
#include "linear/operator.hpp"

namespace seeddelta {

class PyColumnWeight {
public:
    std::string name;
    DenseColumns columns;
    const ColumnWeight &weight() const { return columns.weight(); }
};

// Its spec has the norms.
using PyGate = PlannedGate;
using OptionalGate = std::optional<const PyGate *>;

// Products of a matrix and a gate (null: none) in one state, `batch` tokens each (0: all), one after another: what a
// context of llama.cpp would do with them. Raises ValueError, which has the name.
py::array_t<float> products(const std::string &name, const Operator &op, const FloatMatrix &x, const PyGate *gate,
                            int threads, int64_t batch);

} // namespace seeddelta
