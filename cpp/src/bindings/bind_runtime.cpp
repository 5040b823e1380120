// The graph hook for Python: probe, registry of weights, hook of one llama context.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <cmath>
#include <memory>
#include <optional>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "bindings/arrays.hpp"
#include "bindings/bind_attention.hpp"
#include "bindings/bind_columns.hpp"
#include "bindings/bind_metrics.hpp"
#include "bindings/bind_runtime.hpp"
#include "bindings/bind_weight.hpp"
#include "ggml_host/add_weights.hpp"

namespace seeddelta {

namespace {

std::shared_ptr<GgmlAbi> make_abi(const std::map<std::string, uintptr_t> &symbols) {
    return std::make_shared<GgmlAbi>(probe_ggml(symbols, &GraphHook::compute));
}

using IntDict = py::typing::Dict<py::str, py::int_>;

IntDict layout(const GgmlAbi &abi) {
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

NamedWeight named_weight(PyRegistry &r, const AnyWeight &given) {
    return std::visit(
        [&](const auto *weight) -> NamedWeight {
            if (weight == nullptr) {
                throw py::type_error("a weight is None");
            }
            r.keep.push_back(py::cast(weight, py::return_value_policy::reference));
            if constexpr (std::is_same_v<decltype(weight), const PyWeight *>) {
                return {weight->name, &weight->checked};
            } else {
                return {weight->name, &weight->weight()};
            }
        },
        given);
}

std::vector<Names> add_all(PyRegistry &r, const std::vector<AnyWeight> &weights, const SkipSettings &settings,
                           const std::string &path, const std::string &architecture, const Names &tensors) {
    std::vector<NamedWeight> named;
    for (const AnyWeight &weight : weights) {
        named.push_back(named_weight(r, weight));
    }
    return add_weights(r.registry, settings, {path, architecture, tensors}, named);
}

void add(PyRegistry &r, const AnyWeight &weight) {
    SkipSettings none;
    none.zeros = false;
    add_all(r, {weight}, none, "", "", {});
}

void set_dense(PyRegistry &r, const std::string &name, const py::array &rows, int type) {
    RegisteredWeight *weight = r.registry.find(name);
    if (weight == nullptr) {
        throw py::key_error("the weight '" + name + "' is not registered");
    }
    const MatrixShape shape = weight->op->shape();
    const int64_t n_in = shape.n_in;
    const int64_t block = r.abi->block_size(type);
    if (block <= 0 || n_in % block != 0 || (type != kTypeF32 && r.abi->to_float_of(type) == nullptr)) {
        throw py::value_error("tensor '" + name + "': ggml type " + std::to_string(type) + " cannot be a fallback");
    }
    const auto row_bytes = n_in / block * static_cast<int64_t>(r.abi->type_size(type));
    require_array(rows, "rows", "u", 1, {shape.n_experts * shape.n_out, row_bytes});
    weight->dense = dense_operator(shape, {.data = static_cast<const uint8_t *>(rows.data()),
                                           .row_bytes = row_bytes,
                                           .widen = type == kTypeF32 ? nullptr : r.abi->to_float_of(type)});
    r.keep.push_back(rows);
}

py::typing::Dict<py::str, IntDict> counters(PyHook &h) {
    py::typing::Dict<py::str, IntDict> all;
    for (const ServedWeight &s : h.hook.served()) {
        const WeightCounters &c = s.counters;
        IntDict one;
        one["rewrites"] = c.rewrites.load();
        one["calls"] = c.calls.load();
        one["tokens"] = c.tokens.load();
        one["reused"] = c.reused.load();
        one["prefetched"] = c.prefetched.load();
        one["rows"] = c.rows.load();
        one["experts"] = c.experts.load();
        one["dense_calls"] = c.dense_calls.load();
        one["nonfinite_events"] = c.nonfinite_events.load();
        one["active_inputs"] = c.active_inputs.load();
        one["skipped_inputs"] = c.skipped_inputs.load();
        one["blocks"] = c.blocks.load();
        all[py::str(s.weight->name)] = one;
    }
    return all;
}

IntDict kind_calls(PyHook &h) {
    IntDict d;
    for (const char *name : operator_names()) {
        uint64_t calls = 0;
        for (const ServedWeight &s : h.hook.served()) {
            for (const char *of_weight : s.weight->op->names()) {
                calls += std::string_view(of_weight) == name ? s.counters.own_calls.load() : 0;
            }
        }
        d[name] = calls;
    }
    return d;
}

using FloatDict = py::typing::Dict<py::str, py::float_>;

std::vector<GateCounts> gate_counts(const PyHook &h) {
    std::vector<GateCounts> all;
    for (const Gate &gate : h.hook.gates()) {
        all.push_back(GateCounts::of(gate));
    }
    return all;
}

py::typing::List<FloatDict> gates(const PyHook &h) {
    py::typing::List<FloatDict> all;
    for (const GateCounts &gate : gate_counts(h)) {
        FloatDict d;
        for (const auto &[name, value] : named(gate)) {
            d[py::str(name)] = value;
        }
        all.append(d);
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
    return std::tuple(std::string(names[static_cast<int>(error.kind)]), error.tensor, error.detail);
}

} // namespace

void bind_runtime(py::module_ &m) {
    m.def("ggml_required_symbols", &ggml_required_symbols, "Names of the ggml functions that GgmlAbi needs.");
    py::class_<GgmlAbi, std::shared_ptr<GgmlAbi>>(
        m, "GgmlAbi",
        "Layout of the loaded ggml, learned by probing its public functions.\n\n"
        "Args:\n"
        "    symbols: address of each of ggml_required_symbols().\n"
        "Raises RuntimeError saying which probe failed.")
        .def(py::init(&make_abi), py::arg("symbols"))
        .def("layout", &layout, "Offsets in bytes inside ggml_tensor and numbers of operations.");
    bind_attention(m);
    bind_skip_settings(m);
    py::class_<PyRegistry, std::shared_ptr<PyRegistry>>(
        m, "WeightRegistry", "The converted weights of one file; contexts of the same model may share it.")
        .def(py::init([](std::shared_ptr<GgmlAbi> abi) {
                 auto r = std::make_shared<PyRegistry>();
                 r->abi = std::move(abi);
                 return r;
             }),
             py::arg("abi"))
        .def("add", &add, py::arg("weight"),
             "Registers a weight and keeps it alive. Add all before making a GraphHook.")
        .def("add_all", &add_all, py::arg("weights"), py::arg("settings"), py::arg("path"), py::arg("architecture"),
             py::arg("tensors"),
             "Registers the weights of a model, with what chooses the inputs of those by columns and proc_sparse ones. "
             "Returns\nthe names of those that share each gate; none is left out by the settings' defaults but "
             "zeros.\n\n"
             "Args:\n"
             "    path: of the model, for messages.\n"
             "    architecture, tensors: its general.architecture and the names of all its tensors.\n"
             "Raises ValueError for a model without such matrices and for a file of kwta of another one.")
        .def("set_dense", &set_dense, py::arg("name"), py::arg("rows"), py::arg("type"),
             "Dense rows to fall back to: uint8 [n_out, bytes of a row] of a ggml type, experts one after "
             "another. Kept, not copied.");
    py::class_<PyHook>(
        m, "GraphHook",
        "The native cb_eval of one llama context. Must outlive the context.\n\n"
        "`callback` and `user_data` are the values for llama_context_params.cb_eval and cb_eval_user_data.")
        .def(py::init<std::shared_ptr<PyRegistry>>(), py::arg("registry"))
        .def_property_readonly("callback",
                               [](const PyHook &) { return reinterpret_cast<uintptr_t>(&GraphHook::callback); })
        .def_property_readonly("user_data", [](PyHook &h) { return reinterpret_cast<uintptr_t>(&h.hook); })
        .def_property_readonly("nodes_seen", [](const PyHook &h) { return h.hook.nodes_seen(); })
        .def(
            "set_attention", [](PyHook &h, PyAttention &attention) { h.hook.set_attention(&attention.hook); },
            py::arg("attention"), py::keep_alive<1, 2>(), "Attention of single tokens is taken over, too.")
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
        .def(
            "skipping_metrics",
            [](const PyHook &h, const SkipSettings &settings) {
                return metric_dict(skipping_metrics(settings, gate_counts(h)));
            },
            py::arg("settings"), "`kwta.*`, `pack.*`, `zeros.*` and `event.*`; none of what is not asked for.")
        .def("profile_gates", &profile_gates, py::arg("on"),
             "Start new profiles, or stop. Meanwhile KWTA keeps everything. Not while a product is computed.")
        .def("profiles", &profiles,
             "Per gate: tokens seen, and for each fraction 1/20, 2/20 .. 1 of the units the mean score of the last one "
             "kept\nand the mean share of the squares of the scores that is left out; and the mean share of the scores "
             "that "
             "are 0.")
        .def("gates", &gates, "Per gate, in the order of the weights: what KWTA and StatePack have chosen.")
        .def("kinds", &kind_calls,
             "Products from seed and residual, by base kind and by residual scheme; a codebook that is the whole\n"
             "weight counts as statecells only.")
        .def("take_error", &take_error,
             "(kind, tensor, detail) of the first error since the last call, or None. Kinds: not_served, layout, "
             "not_finite,\n"
             "dense_not_finite, bad_index, no_memory.");
    bind_proof(m);
}

} // namespace seeddelta
