// The Python class Weight: a seeddelta_ctx and the arrays it points to.
#pragma once
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <string>
#include <vector>

#include "seeddelta/columns.hpp"
#include "seeddelta/weight.hpp"

namespace seeddelta {

class PyWeight {
public:
    std::string name;
    seeddelta_ctx ctx;
    std::vector<pybind11::object> keep; // the arrays behind ctx's pointers
    std::vector<float> column_factor;   // behind ctx.column_factor
    ColumnWeight columns;               // behind ctx.columns, in column layout
    std::vector<float> unit_scale;      // behind columns.unit_scale
    int64_t nbytes = 0;

    bool is_column() const { return ctx.columns != nullptr; }
    int64_t rows() const { return ctx.n_experts * ctx.n_out; }
};

} // namespace seeddelta
