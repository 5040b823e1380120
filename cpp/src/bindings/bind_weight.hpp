// The Python class Weight: a checked weight and the arrays it points to.
#pragma once
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <string>
#include <vector>

#include "seeddelta/make_weight.hpp"

namespace seeddelta {

class PyWeight {
public:
    std::string name;
    CheckedWeight checked;
    std::vector<pybind11::object> keep; // the arrays behind its pointers
    int64_t nbytes = 0;

    PyWeight(const std::string &tensor, const WeightArrays &arrays) : name(tensor), checked(tensor, arrays) {}
    const seeddelta_ctx &ctx() const { return checked.ctx(); }
    int64_t rows() const { return ctx().n_experts * ctx().n_out; }
    bool is_column() const { return checked.is_column(); }
};

} // namespace seeddelta
