// Attention for Python: the hook that takes it over in llama.cpp, and one operation on NumPy arrays for tests and
// figures.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <memory>
#include <optional>
#include <thread>
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

std::unique_ptr<PyAttention> make_hook(const std::shared_ptr<GgmlAbi> &abi,
                                       const std::map<std::string, uintptr_t> &symbols, const PackSettings &pack,
                                       const std::vector<Override> &layers, int64_t min_context, int64_t gap_every,
                                       float gap_limit, const std::map<std::string, double> &event) {
    AttentionSettings settings{pack, {}, min_context, gap_every, gap_limit, event_of(event)};
    if (settings.event.enabled && pack.mode != PackMode::exact) {
        throw py::value_error("events are for attention without bits");
    }
    for (const auto &[first, last, first_head, last_head, mode, budget] : layers) {
        settings.layers.push_back({first, last, first_head, last_head, mode_of(mode), budget});
    }
    return std::make_unique<PyAttention>(abi, probe_attention(symbols, *abi), std::move(settings));
}

using FloatDict = py::typing::Dict<py::str, py::float_>;

FloatDict counters(const PyAttention &h) {
    const PackCounters &c = h.hook.totals().pack;
    FloatDict d;
    const auto put = [&](const char *name, const std::atomic<uint64_t> &value) {
        d[name] = static_cast<double>(value.load());
    };
    put("nodes", h.hook.counters().nodes);
    put("left", h.hook.counters().left);
    put("exact", h.hook.counters().exact);
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

FloatDict event_counters(const EventCounters &c) {
    FloatDict d;
    const auto put = [&](const char *name, const std::atomic<uint64_t> &value) {
        d[name] = static_cast<double>(value.load());
    };
    put("operations", c.operations);
    put("full", c.full);
    put("given", c.given);
    put("seen", c.seen);
    put("sent", c.sent);
    put("forced", c.forced);
    put("ages", c.ages);
    put("quorum", c.quorum);
    put("budget", c.budget);
    put("heads", c.heads);
    put("idle", c.idle);
    put("checks", c.checks);
    put("failed", c.failed);
    put("resets", c.resets);
    put("wrong", c.wrong);
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

using Floats = py::array_t<float, py::array::c_style>;

// Arrays of float16, or the bytes of ggml's Q8_0.
CacheType type_of(const py::array &a) {
    return a.dtype().kind() == 'u' ? CacheType::q8_0 : CacheType::f16;
}

const char *kinds(CacheType type) {
    return type == CacheType::f16 ? "f" : "u";
}

int64_t item_size(CacheType type) {
    return type == CacheType::f16 ? 2 : 1;
}

// Queries, keys and values, with their shapes checked.
AttentionProblem problem_of(const FloatMatrix &q, const py::array &k, const py::array &v, bool v_by_channel) {
    if (q.ndim() != 2) {
        throw py::value_error("q must be [n_head, dim_k]");
    }
    AttentionProblem p;
    p.k_type = type_of(k);
    p.v_type = type_of(v);
    p.dim_k = q.shape(1);
    require_array(k, "k", kinds(p.k_type), item_size(p.k_type),
                  {-1, -1, cache_row_bytes(p.k_type, p.dim_k) / item_size(p.k_type)});
    p.v_by_channel = v_by_channel;
    if (v_by_channel) {
        require_array(v, "v", "f", 2, {k.shape(1), -1, k.shape(0)});
    } else {
        require_array(v, "v", kinds(p.v_type), item_size(p.v_type), {k.shape(0), k.shape(1), -1});
    }
    p.n_head = q.shape(0);
    p.n_kv_head = k.shape(1);
    p.n_kv = k.shape(0);
    p.dim_v = v_by_channel ? v.shape(1) : p.v_type == CacheType::f16 ? v.shape(2) : v.shape(2) / kQ8Bytes * kQ8Block;
    if (p.n_kv < 1 || p.n_kv_head < 1 || p.n_head % p.n_kv_head != 0 || p.dim_k % kLanes != 0 ||
        p.dim_v % kLanes != 0 || p.dim_k > kLargestKey || p.dim_v < 1 ||
        (p.k_type == CacheType::q8_0 && p.dim_k % kQ8Block != 0) ||
        (p.v_type == CacheType::q8_0 && v.shape(2) % kQ8Bytes != 0)) {
        throw py::value_error("heads are a multiple of the KV heads, channels of 16 (Q8_0: 32) and at most 512");
    }
    p.q = q.data();
    p.q_stride = p.dim_k;
    p.k = static_cast<const uint8_t *>(k.data());
    p.v = static_cast<const uint8_t *>(v.data());
    p.k_head = cache_row_bytes(p.k_type, p.dim_k);
    p.k_row = p.k_head * p.n_kv_head;
    p.v_head = v_by_channel ? 2 * p.dim_v * p.n_kv : cache_row_bytes(p.v_type, p.dim_v);
    p.v_row = v_by_channel ? 2 * p.n_kv : p.v_head * p.n_kv_head;
    return p;
}

// Keeps the bits of one array of keys between calls, and runs operations over it.
class PyAttentionRun {
public:
    py::typing::Tuple<Floats, FloatDict> run(const FloatMatrix &q, const py::array &k, const py::array &v,
                                             const std::optional<py::array> &mask, float scale, float max_bias,
                                             float softcap, const std::optional<Floats> &sinks, int threads,
                                             const std::optional<PackSettings> &settings, bool repack, bool compare,
                                             bool v_by_channel, const std::map<std::string, double> &event,
                                             const std::vector<int64_t> &written) {
        if (threads < 1) {
            throw py::value_error("threads must be 1 or more");
        }
        AttentionProblem p = problem_of(q, k, v, v_by_channel);
        if (mask && mask->dtype().itemsize() == 4) {
            require_array(*mask, "mask", "f", 4, {p.n_kv});
            p.mask32 = static_cast<const float *>(mask->data());
        } else if (mask) {
            require_array(*mask, "mask", "f", 2, {p.n_kv});
            p.mask = static_cast<const uint16_t *>(mask->data());
        }
        if (sinks) {
            require_array(*sinks, "sinks", "f", 4, {p.n_head});
            p.sinks = sinks->data();
        }
        p.scale = scale;
        p.max_bias = max_bias;
        p.softcap = softcap;
        Floats out({p.n_head, p.dim_v});
        p.out = out.mutable_data();
        p.out_stride = p.dim_v;
        const bool packed = settings && settings->mode != PackMode::exact;
        PackOutcome outcome;
        const EventSpec spec = event_of(event);
        remember(p, packed ? &*settings : nullptr, spec, written, outcome);
        {
            const py::gil_scoped_release release; // arrays are kept alive by the caller's references
            attention_.reserve(p, packed, compare);
            const bool changes = spec.enabled && !events_->paused();
            const bool fresh = packed && (repack || !pack_->calibrated);
            std::vector<std::jthread> others;
            const auto work = [&](int ith) {
                if (packed) {
                    attention_.packed(p, *pack_, *settings, fresh, compare, outcome, ith, threads);
                } else if (changes) {
                    events_->attend(p, attention_, spec.budget_ns, ith, threads);
                } else {
                    attention_.exact(p, ith, threads);
                }
            };
            for (int ith = 1; ith < threads; ++ith) {
                others.emplace_back(work, ith);
            }
            work(0);
        }
        return py::typing::Tuple<Floats, FloatDict>(py::make_tuple(out, told(outcome)));
    }

private:
    // Makes the memory that the operation needs, unless it is there.
    void remember(const AttentionProblem &p, const PackSettings *settings, const EventSpec &spec,
                  const std::vector<int64_t> &written, PackOutcome &outcome) {
        outcome.heads.resize(static_cast<size_t>(p.n_kv_head));
        if (settings != nullptr && (pack_ == nullptr || !pack_->fits(p, settings->mode))) {
            pack_ = std::make_unique<KeyPack>(p.n_kv_head, p.dim_k, p.n_kv, settings->mode, settings->recent);
        }
        if (settings != nullptr && !settings->heads.empty() && settings->heads.size() != outcome.heads.size()) {
            throw py::value_error("the settings have choices of another number of KV heads");
        }
        if (spec.enabled && (settings != nullptr || !p.masked() || p.max_bias != 0.0F)) {
            throw py::value_error("events are for attention with a mask, without bits and ALiBi");
        }
        if (spec.enabled && (events_ == nullptr || !events_->fits(p))) {
            events_ = std::make_unique<EventMemory>(spec, p, p.n_kv, event_counters_);
        }
        for (const int64_t row : written) {
            if (row < 0 || row >= p.n_kv) {
                throw py::value_error("a row that is written is not there");
            }
            if (events_ != nullptr) {
                events_->written(row);
            }
        }
    }

    FloatDict told(const PackOutcome &outcome) const {
        FloatDict found = event_counters(event_counters_); // since the first call
        found["visible"] = static_cast<double>(outcome.visible.load());
        found["kept"] = static_cast<double>(outcome.kept.load());
        found["scored"] = static_cast<double>(outcome.scored.load());
        found["values"] = static_cast<double>(outcome.values.load());
        found["dense"] = static_cast<double>(outcome.dense.load());
        found["stale"] = outcome.stale.load() ? 1.0 : 0.0;
        found["gap"] = outcome.gap;
        found["recall"] = outcome.recall;
        return found;
    }

    Attention attention_;
    std::unique_ptr<KeyPack> pack_;
    EventCounters event_counters_;
    std::unique_ptr<EventMemory> events_;
};

} // namespace

void bind_attention(py::module_ &m) {
    m.def("attention_required_symbols", &attention_required_symbols,
          "Names of the ggml functions that AttentionHook needs, beside those of ggml_required_symbols.");
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
        "Takes over the attention of single tokens in the graphs that a GraphHook sees.\n\n"
        "Args:\n"
        "    symbols: addresses of ggml_required_symbols() and attention_required_symbols().\n"
        "    layers: (first, last, first KV head, last, mode, budget) of layers or, unless the\n"
        "        first is -1, of their heads that differ from `pack`; the last that fits holds.\n"
        "    event: not empty: windows of positions are computed when they have changed; the limits\n"
        "        of Gate's events. Needs `pack` with the mode exact.\n"
        "    gap_limit: largest mean relative error of a layer; one above it becomes exact.\n"
        "Raises RuntimeError saying which probe failed.")
        .def(py::init(&make_hook), py::arg("abi"), py::arg("symbols"), py::arg("pack"), py::kw_only(),
             py::arg("layers") = std::vector<Override>{}, py::arg("min_context") = 1024, py::arg("gap_every") = 64,
             py::arg("gap_limit") = 0.3F, py::arg("event") = std::map<std::string, double>{})
        .def("events", &events, "What event-driven attention did so far, of all layers.")
        .def(
            "invalidate", [](PyAttention &h) { h.hook.invalidate(); },
            "Forgets the bits of all keys: something other than a graph wrote to the caches.")
        .def(
            "pause", [](PyAttention &h, bool exact) { h.hook.pause(exact); }, py::arg("exact"),
            "Whether all attention is exact from the next graph on. Not while a graph is computed.")
        .def(
            "activity",
            [](const PyAttention &h) {
                const SelectorTotals &t = h.hook.totals();
                const uint64_t changed = t.event.operations.load() - t.event.full.load();
                return std::tuple(t.pack.operations.load(), changed, t.pack.disabled.load(),
                                  h.hook.report().event_given_up);
            },
            "Operations with chosen keys, operations with the windows that have changed, and layers that became exact: "
            "by their\nmean error, and by an error of events in one of the first checks.")
        .def("counters", &counters, "What it did so far; `left` are nodes of single tokens that ggml computed.")
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
    py::class_<PyAttentionRun>(m, "AttentionRun", "Attention of one token on arrays; keeps the bits of its keys.")
        .def(py::init<>())
        .def(
            "__call__", &PyAttentionRun::run, py::arg("q"), py::arg("k"), py::arg("v"), py::arg("mask") = py::none(),
            py::kw_only(), py::arg("scale") = 1.0F, py::arg("max_bias") = 0.0F, py::arg("softcap") = 0.0F,
            py::arg("sinks") = py::none(), py::arg("threads") = 1, py::arg("pack") = py::none(),
            py::arg("repack") = false, py::arg("compare") = false, py::arg("v_by_channel") = false,
            py::arg("event") = std::map<std::string, double>{}, py::arg("written") = std::vector<int64_t>{},
            "q float32[n_head, dim_k], k float16[n_kv, n_kv_head, dim_k], v float16[n_kv, n_kv_head, dim_v], mask\n"
            "float16 or float32[n_kv] (0, a bias, or -inf), sinks float32[n_head]. k and v are uint8 for the bytes of\n"
            "Q8_0; with `v_by_channel` v is float16[n_kv_head, dim_v, n_kv]. With `pack` keys are chosen by their\n"
            "bits, which are made at the first call and with `repack`; `compare` gives the exact result, and how far\n"
            "the other one was. With `event` (limits as of Gate) only windows of 128 positions are computed that have\n"
            "changed since earlier calls, of which the rows `written` tell what is new. Returns (float32[n_head,\n"
            "dim_v], what was done). Raises ValueError for shapes that do not fit.");
}

} // namespace seeddelta
