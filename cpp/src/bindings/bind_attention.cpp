// Attention for Python: how keys are chosen.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <vector>

#include "bindings/arrays.hpp"
#include "bindings/bind_attention.hpp"
#include "bindings/bind_columns.hpp"

namespace seeddelta {

namespace {

PackMode mode_of(const std::string &name) {
    if (name == "exact") {
        return PackMode::exact;
    }
    if (name == "binary") {
        return PackMode::binary;
    }
    if (name == "ternary") {
        return PackMode::ternary;
    }
    throw py::value_error("mode is '" + name + "'; wanted exact, binary or ternary");
}

PackSettings make_settings(const std::string &mode, float eps, bool popcount, bool refine, float budget, float mass,
                           int64_t sinks, int64_t recent, float density, float negligible, int64_t gamma_chunk,
                           float gamma_cap, int64_t audits) {
    if (!(eps >= 0) || !(budget > 0) || !(mass >= 0 && mass <= 1) || sinks < 0 || recent < 0 ||
        !(density > 0 && density <= 1) || !(negligible >= 0 && negligible < 1) || gamma_chunk < 0 || !(gamma_cap > 0) ||
        audits < 0) {
        throw py::value_error("a setting of the key pack is out of range");
    }
    return {mode_of(mode), eps,     popcount,   refine,      budget,    mass,   sinks,
            recent,        density, negligible, gamma_chunk, gamma_cap, audits, {}};
}

PackSettings with_heads(const PackSettings &settings, const std::vector<std::pair<bool, float>> &heads) {
    PackSettings found = settings;
    for (const auto &[exact, budget] : heads) {
        if (!(budget > 0)) {
            throw py::value_error("a budget is out of range");
        }
        found.heads.push_back({exact, budget});
    }
    return found;
}

} // namespace

void bind_attention(py::module_ &m) {
    py::class_<PackSettings>(m, "PackSettings",
                             "How keys are chosen by their bits; see seeddelta.StatePackKV. Raises ValueError for what "
                             "is out of range.")
        .def(py::init(&make_settings), py::arg("mode"), py::kw_only(), py::arg("eps") = 1.2F,
             py::arg("popcount") = false, py::arg("refine") = true, py::arg("budget") = 0.25F, py::arg("mass") = 0.0F,
             py::arg("sinks") = 4, py::arg("recent") = 64, py::arg("density") = 0.5F, py::arg("negligible") = 0.0F,
             py::arg("gamma_chunk") = 0, py::arg("gamma_cap") = 4.0F, py::arg("audits") = 2)
        .def("with_heads", &with_heads, py::arg("heads"),
             "These settings, and for each KV head whether it attends to all keys, and its budget.");
    bind_attention_run(m);
}

} // namespace seeddelta
