// Attention for Python: the hook that takes it over in llama.cpp.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <memory>
#include <optional>
#include <tuple>
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

using Override = std::tuple<int64_t, int64_t, int64_t, int64_t, std::string, float>;

std::unique_ptr<PyAttention> make_hook(const std::shared_ptr<LoadedGgml> &ggml, const PackSettings &pack,
                                       const std::vector<Override> &layers, int64_t min_context, int64_t gap_every,
                                       float gap_limit, const std::map<std::string, double> &event) {
    AttentionSettings settings{.pack = pack,
                               .layers = {},
                               .min_context = min_context,
                               .gap_every = gap_every,
                               .gap_limit = gap_limit,
                               .event = event_of(event)};
    if (settings.event.enabled && pack.mode != PackMode::exact) {
        throw py::value_error("events are for attention without bits");
    }
    for (const auto &[first, last, first_head, last_head, mode, budget] : layers) {
        settings.layers.push_back({first, last, first_head, last_head, mode_of(mode), budget});
    }
    return std::make_unique<PyAttention>(ggml, std::move(settings));
}

FloatDict counters(const PyAttention &h) {
    const PackCounters &c = h.hook.totals().pack;
    FloatDict d;
    const auto put = [&](const char *name, const std::atomic<uint64_t> &value) {
        d[name] = static_cast<double>(value.load());
    };
    put("nodes", h.hook.counters().nodes);
    put("left", h.hook.counters().left);
    put("exact", h.hook.counters().exact);
    put("prompts", h.hook.counters().prompts);
    put("packed", c.operations);
    put("events", h.hook.totals().event_operations);
    put("visible", c.visible);
    put("kept", c.kept);
    put("scored", c.scored);
    put("popcount", c.popcount);
    put("values", c.values);
    put("dense", c.dense);
    put("repacks", c.repacks);
    put("rebuilds", c.rebuilds);
    put("stale", c.stale);
    put("compared", c.compared);
    put("disabled", c.disabled);
    const auto [gap_sum, recall_sum] = h.hook.gap_and_recall_sum();
    const SelectorReport report = h.hook.report();
    d["gap_sum"] = gap_sum;
    d["recall_sum"] = recall_sum;
    d["bytes"] = static_cast<double>(report.pack_bytes);
    d["layers"] = static_cast<double>(report.packed_layers);
    return d;
}

FloatDict events(const PyAttention &h) {
    FloatDict d = event_counters(h.hook.totals().event);
    const SelectorReport report = h.hook.report();
    d["layers"] = static_cast<double>(report.event_layers);
    d["active"] = static_cast<double>(report.event_active);
    d["gap"] = report.event_gap;
    d["given_up"] = static_cast<double>(report.event_given_up);
    d["last_ns"] = report.event_ns;
    d["bytes"] = static_cast<double>(report.event_bytes);
    return d;
}

py::typing::List<FloatDict> heads(const PyAttention &h) {
    py::typing::List<FloatDict> found;
    const SelectorReport report = h.hook.report();
    for (const HeadTotal &one : report.heads) {
        FloatDict d;
        d["layer"] = static_cast<double>(one.layer);
        d["head"] = static_cast<double>(one.kv_head);
        d["exact"] = one.exact ? 1.0 : 0.0;
        d["budget"] = one.budget;
        d["visible"] = static_cast<double>(one.outcome.visible);
        d["kept"] = static_cast<double>(one.outcome.kept);
        d["compared"] = static_cast<double>(one.outcome.compared);
        d["gap_sum"] = one.outcome.gap;
        d["recall_sum"] = one.outcome.recall;
        found.append(d);
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
    py::class_<PyAttention>(
        m, "AttentionHook",
        "Takes over the attention in the graphs that a GraphHook sees.\n\n"
        "Args:\n"
        "    layers: (first, last, first KV head, last, mode, budget) of layers or, unless the\n"
        "        first is -1, of their heads that differ from `pack`; the last that fits holds.\n"
        "    event: not empty: windows of positions are computed when they have changed; the limits\n"
        "        of Gate's events. Needs `pack` with the mode exact.\n"
        "    gap_limit: largest mean relative error of a layer; one above it becomes exact.\n"
        "Raises RuntimeError saying which probe failed, or that attention is not computed as it should be.")
        .def(py::init(&make_hook), py::arg("ggml"), py::arg("pack"), py::kw_only(),
             py::arg("layers") = std::vector<Override>{}, py::arg("min_context") = 1024, py::arg("gap_every") = 64,
             py::arg("gap_limit") = 0.3F, py::arg("event") = std::map<std::string, double>{})
        .def("events", &events, "What event-driven attention did so far, of all layers.")
        .def(
            "invalidate", [](PyAttention &h) { h.hook.invalidate(); },
            "Forgets the bits of all keys: something other than a graph wrote to the caches.")
        .def("counters", &counters, "What it did so far; `left` are nodes that ggml computed.")
        .def("heads", &heads,
             "For every KV head of the layers that choose: layer, head, exact and budget (its settings), and of all\n"
             "operations visible, kept, compared, gap_sum and recall_sum.")
        .def_property_readonly(
            "missing_head", [](const PyAttention &h) { return h.hook.missing_head(); },
            "A layer and a KV head of `layers` that it does not have; (-1, -1): none.")
        .def_property_readonly(
            "left_because",
            [](const PyAttention &h) -> std::optional<std::string> {
                const char *why = h.hook.left_because();
                return why == nullptr ? std::nullopt : std::optional<std::string>(why);
            },
            "Why a node was left to ggml, or None.")
        .def_property_readonly(
            "in_pieces", [](const PyAttention &h) { return h.hook.in_pieces(); },
            "Whether a result was zeros, because ggml computed a graph in pieces.");
    bind_attention_run(m);
}

} // namespace seeddelta
