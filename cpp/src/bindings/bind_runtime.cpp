// The graph hook for Python: probe, registry of weights, hook of one llama context.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <cmath>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "bindings/arrays.hpp"
#include "bindings/bind_columns.hpp"
#include "bindings/bind_runtime.hpp"
#include "bindings/bind_weight.hpp"
#include "ggml_host/add_weights.hpp"
#include "runtime/totals.hpp"

namespace seeddelta {

namespace {

using IntDict = py::typing::Dict<py::str, py::int_>;

IntDict layout(const LoadedGgml &ggml) {
    const GgmlAbi &abi = ggml.abi();
    IntDict d;
    d["type"] = abi.type;
    d["ne"] = abi.ne;
    d["nb"] = abi.nb;
    d["op"] = abi.op;
    d["op_params"] = abi.params;
    d["src"] = abi.src;
    d["data"] = abi.data;
    d["name"] = abi.name;
    d["op_mul_mat"] = abi.op_mul_mat;
    d["op_mul_mat_id"] = abi.op_mul_mat_id;
    d["op_get_rows"] = abi.op_get_rows;
    d["op_custom"] = abi.op_custom;
    d["traits_to_float"] = abi.to_float;
    return d;
}

// References into Python objects, which the registry keeps. Not null.
using AnyWeight = std::variant<const PyWeight *, const PyColumnWeight *>;

void add(PyRegistry &r, const AnyWeight &given) {
    SkipSettings none;
    none.zeros = false;
    std::visit(
        [&](const auto *weight) {
            if (weight == nullptr) {
                throw py::type_error("a weight is None");
            }
            r.keep.push_back(py::cast(weight, py::return_value_policy::reference));
            if constexpr (std::is_same_v<decltype(weight), const PyWeight *>) {
                add_weights(*r.registry, none, {}, {{weight->name, &weight->checked}});
            } else {
                add_weights(*r.registry, none, {}, {{weight->name, &weight->weight()}});
            }
        },
        given);
}

py::typing::Dict<py::str, IntDict> counters(PyHook &h) {
    py::typing::Dict<py::str, IntDict> all;
    for (const ServedWeight &s : h.hook.served()) {
        IntDict one;
        for (size_t i = 1; i < s.counters.kSize; ++i) {
            one[kWeightCounts[i]] = s.counters.at(i);
        }
        all[py::str(s.weight->name)] = one;
    }
    return all;
}

py::typing::Dict<py::str, std::pair<int64_t, int64_t>> column_shapes(PyHook &h) {
    py::typing::Dict<py::str, std::pair<int64_t, int64_t>> all;
    for (const ServedWeight &s : h.hook.served()) {
        const InputForm form = s.weight->op->input_form();
        if (form.by_column) {
            all[py::str(s.weight->name)] = std::pair(form.shape.n_out, form.shape.n_in);
        }
    }
    return all;
}

void tune_gate(PyHook &h, size_t number, double keep, float threshold) {
    if (number >= h.hook.gates().size() || !(keep > 0.0 && keep <= 1.0) || std::isnan(threshold)) {
        throw py::value_error("there is no such gate, or keep is not above 0 and at most 1");
    }
    h.hook.gates()[number].tune(keep, threshold);
}

void pause_gates(PyHook &h, unsigned features) {
    if (features > (kKwta | kPack | kEvents | kZeros)) {
        throw py::value_error("there is no such feature of a gate");
    }
    h.hook.pause(features);
}

void profile_gates(PyHook &h, bool on) {
    for (Gate &gate : h.hook.gates()) {
        gate.profile(on);
    }
}

using Profile = std::tuple<int64_t, std::vector<double>, std::vector<double>, double>;

std::vector<Profile> profiles(const PyHook &h) {
    std::vector<Profile> all;
    for (const Gate &gate : h.hook.gates()) {
        const GateProfile &p = gate.profile();
        const double tokens = p.tokens > 0 ? static_cast<double>(p.tokens) : 1.0;
        std::vector<double> threshold(std::begin(p.threshold), std::end(p.threshold));
        std::vector<double> dropped(std::begin(p.dropped), std::end(p.dropped));
        for (int i = 0; i < kProfileLevels; ++i) {
            threshold[static_cast<size_t>(i)] /= tokens;
            dropped[static_cast<size_t>(i)] /= tokens;
        }
        all.emplace_back(p.tokens, threshold, dropped, p.zeros / tokens);
    }
    return all;
}

std::optional<std::tuple<std::string, std::string, std::string>> take_error(PyHook &h) {
    static const char *const names[] = {"none",      "not_served", "layout", "not_finite", "dense_not_finite",
                                        "bad_index", "no_memory"};
    const HookError error = h.hook.take_error();
    if (error.kind == HookErrorKind::none) {
        return std::nullopt;
    }
    return std::tuple(std::string(names[static_cast<int>(error.kind)]), error.tensor, error.text());
}

} // namespace

void bind_runtime(py::module_ &m) {
    m.def("ggml_required_symbols", &ggml_required_symbols, "Names of the ggml functions without which nothing runs.");
    m.def("ggml_symbols", &LoadedGgml::symbols, "Names of all ggml functions that are used.");
    py::class_<LoadedGgml, std::shared_ptr<LoadedGgml>>(
        m, "LoadedGgml",
        "The loaded ggml: its layout, learned by probing its public functions, and whether it computes as expected.\n\n"
        "Args:\n"
        "    symbols: addresses of ggml_symbols(), those that there are.\n"
        "Raises RuntimeError saying which probe failed, or which operation is not computed as it should be.")
        .def(py::init<std::map<std::string, uintptr_t>>(), py::arg("symbols"))
        .def("layout", &layout, "Offsets in bytes inside ggml_tensor and numbers of operations.")
        .def_property_readonly("self_tests", &LoadedGgml::self_tests,
                               "Operations that were compared with ggml's own: four, with attention five.")
        .def(
            "placeholder_type",
            [](const LoadedGgml &ggml, int64_t n_in) { return ggml.abi().placeholder(n_in).number; }, py::arg("n_in"),
            "The smallest ggml type for a placeholder of so many columns.");
    bind_attention(m);
    py::class_<PyRegistry, std::shared_ptr<PyRegistry>>(
        m, "WeightRegistry", "The converted weights of one file; contexts of the same model may share it.")
        .def(py::init([](std::shared_ptr<LoadedGgml> ggml) {
                 auto r = std::make_shared<PyRegistry>();
                 r->registry = std::make_shared<WeightRegistry>();
                 r->ggml = std::move(ggml);
                 return r;
             }),
             py::arg("ggml"))
        .def("add", &add, py::arg("weight"),
             "Registers a weight and keeps it alive. Add all before making a GraphHook.");
    py::class_<PyHook>(
        m, "GraphHook",
        "The native cb_eval of one llama context. Must outlive the context.\n\n"
        "`callback` and `user_data` are the values for llama_context_params.cb_eval and cb_eval_user_data.")
        .def(py::init<std::shared_ptr<PyRegistry>>(), py::arg("registry"))
        .def_property_readonly("callback",
                               [](const PyHook &) { return reinterpret_cast<uintptr_t>(&GraphHook::callback); })
        .def_property_readonly("user_data", [](PyHook &h) { return reinterpret_cast<uintptr_t>(&h.hook); })
        .def_property_readonly("nodes_seen", [](const PyHook &h) { return h.hook.nodes_seen(); })
        .def("counters", &counters,
             "Per weight: rewrites, calls, tokens, reused, rows, experts, dense_calls, nonfinite_events, "
             "active_inputs,\n"
             "skipped_inputs since the hook was made.")
        .def("column_shapes", &column_shapes, "(n_out, n_in) of the weights that are stored by columns.")
        .def(
            "tune_gate", &tune_gate, py::arg("number"), py::arg("keep"), py::arg("threshold") = -1.0F,
            "What KWTA keeps from now on: a fraction, or (0 or more) the scores above a threshold. Not while a product "
            "is\ncomputed.")
        .def("pause_gates", &pause_gates, py::arg("features"),
             "What all gates leave out from now on, a sum of 1 (KWTA), 2 (StatePack), 4 (events) and 8 (zeros). Not "
             "while a\nproduct is computed.")
        .def("profile_gates", &profile_gates, py::arg("on"),
             "Start new profiles, or stop. Meanwhile KWTA keeps everything. Not while a product is computed.")
        .def("profiles", &profiles,
             "Per gate: tokens seen, and for each fraction 1/20, 2/20 .. 1 of the units the mean score of the last one "
             "kept\nand the mean share of the squares of the scores that is left out; and the mean share of the scores "
             "that "
             "are 0.")
        .def("take_error", &take_error,
             "(kind, tensor, text for people) of the first error since the last call, or None. Kinds: not_served, "
             "layout,\nnot_finite, dense_not_finite, bad_index, no_memory.");
    bind_proof(m);
}

} // namespace seeddelta
