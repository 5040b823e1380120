// The Python class Weight: a checked weight and the arrays it points to.
#pragma once
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <map>
#include <string>

#include "seeddelta/make_weight.hpp"

namespace seeddelta {

using NamedArrays = std::map<std::string, pybind11::array>;

class PyWeight {
public:
    std::string name;
    CheckedWeight checked;
    NamedArrays given; // the arrays behind its pointers

    PyWeight(const std::string &tensor, const WeightArrays &arrays, const NamedArrays &behind)
        : name(tensor), checked(tensor, arrays), given(behind) {}
    const seeddelta_ctx &ctx() const { return checked.ctx(); }
    int64_t rows() const { return ctx().n_experts * ctx().n_out; }
    bool is_column() const { return checked.is_column(); }
};

} // namespace seeddelta
