// Settings of the run time, and attention of ours in llama.cpp, for Python.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "bindings/bind_runtime.hpp"
#include "runtime/own_attention.hpp"

namespace py = pybind11;

namespace seeddelta {

namespace {

Options make_options(const std::map<std::string, py::bytes> &values, const std::string &skip_path,
                     const std::string &skip_json) {
    Options options;
    for (const auto &[name, value] : values) {
        if (name == "columns") {
            options.columns = true;
        } else {
            options.set(name, value);
        }
    }
    if (!skip_json.empty()) {
        options.skipping.kwta = options.skipping.kwta.value_or(KwtaSettings());
        options.skipping.kwta->file = SkipFile::parse(skip_path, skip_json);
    }
    options.check();
    return options;
}

struct PyAttention {
    PyAttention(std::shared_ptr<const LoadedGgml> loaded, const Options &options)
        : ggml(std::move(loaded)), own(*ggml, options) {}
    std::shared_ptr<const LoadedGgml> ggml;
    OwnAttention own;
};

using FloatDict = py::typing::Dict<py::str, py::float_>;

py::typing::List<FloatDict> heads(PyAttention &a) {
    py::typing::List<FloatDict> found;
    for (const HeadTotal &one : a.own.hook().report().heads) {
        const auto of = [](auto value) { return static_cast<double>(value); };
        const auto &[layer, head, exact, budget, outcome] = one;
        const double compared = of(outcome.compared);
        FloatDict d;
        d["layer"] = of(layer);
        d["head"] = of(head);
        d["exact"] = exact ? 1.0 : 0.0;
        d["budget"] = of(budget);
        d["compared"] = compared;
        d["density"] = of(outcome.kept) / std::max(of(outcome.visible), 1.0);
        d["recall"] = compared > 0 ? of(outcome.recall) / compared : 1.0;
        d["gap"] = of(outcome.gap) / std::max(compared, 1.0);
        found.append(d);
    }
    return found;
}

std::optional<std::pair<bool, std::string>> wrong(PyAttention &a) {
    bool settings = false;
    std::string text = a.own.wrong(settings);
    return text.empty() ? std::nullopt : std::optional(std::pair(settings, std::move(text)));
}

} // namespace

void bind_options(py::module_ &m) {
    py::class_<Options>(
        m, "Options",
        "Settings of the run time (RuntimeConfig), for a model and its contexts.\n\n"
        "Args:\n"
        "    values: text of each setting that is not its default, by its name, such as event.delta_theta.\n"
        "    skip_path, skip_json: the path and, in JSON, the content of the file of kwta.file; empty: none.\n"
        "Raises ValueError for a value that cannot be, and for settings that contradict each other.")
        .def(py::init(&make_options), py::arg("values") = std::map<std::string, py::bytes>(), py::arg("skip_path") = "",
             py::arg("skip_json") = "");
}

void bind_own_attention(py::module_ &m) {
    py::class_<PyAttention>(
        m, "OwnAttention",
        "Attention of ours in the graphs that a GraphHook sees.\n\n"
        "Raises RuntimeError saying which probe failed, or that attention is not computed as it should be.")
        .def(py::init<std::shared_ptr<LoadedGgml>, const Options &>(), py::arg("ggml"), py::arg("options"))
        .def_property_readonly(
            "automatic", [](const PyAttention &a) { return a.own.automatic(); },
            "Whether llama.cpp may compute what does not fit.")
        .def_property_readonly(
            "chooses",
            [](PyAttention &a) {
                const AttentionSettings &settings = a.own.hook().settings();
                return settings.chooses_keys() || settings.event.enabled;
            },
            "Whether keys are left out.")
        .def(
            "take_over", [](PyAttention &a, PyHook &h) { h.hook.set_attention(&a.own.hook()); }, py::arg("hook"),
            py::keep_alive<2, 1>(), "In the graphs of a hook, from the next one on.")
        .def(
            "invalidate", [](PyAttention &a) { a.own.hook().invalidate(); },
            "Forgets the bits of all keys: something other than a graph wrote to the caches.")
        .def(
            "heads", &heads,
            "For every KV head of the layers that choose: layer, head, exact and budget (its settings), density (share "
            "of\nthe visible positions attended to), and of the operations that were compared with the exact result "
            "compared,\nrecall (mean softmax mass kept) and gap (mean relative error of the output).")
        .def("wrong", &wrong,
             "None, or why results do not count, and whether it is the settings' fault, after a graph was computed.");
}

} // namespace seeddelta
