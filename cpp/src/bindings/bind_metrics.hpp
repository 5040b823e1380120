// Metrics as Python's whole numbers and floats.
#pragma once
#include <pybind11/pybind11.h>
#include <pybind11/typing.h>

#include <vector>

#include "gating/counts.hpp"

namespace seeddelta {

using MetricDict = pybind11::typing::Dict<pybind11::str, pybind11::typing::Union<pybind11::int_, pybind11::float_>>;

MetricDict metric_dict(const std::vector<Metric> &metrics);

} // namespace seeddelta
