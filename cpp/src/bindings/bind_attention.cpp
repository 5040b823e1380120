// One operation of attention on NumPy arrays, for tests and figures.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <optional>
#include <vector>

#include "attention/settings.hpp"
#include "bindings/arrays.hpp"
#include "bindings/bind_runtime.hpp"

namespace seeddelta {

using FloatDict = py::typing::Dict<py::str, py::float_>;

constexpr const char *kEventCounts[] = {"operations", "full",  "given", "seen",   "sent",   "forced", "ages", "quorum",
                                        "budget",     "heads", "idle",  "checks", "failed", "resets", "wrong"};

namespace {

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

constexpr int64_t kLayer = 2;
constexpr const char *kHeads = "heads are a multiple of the KV heads, channels of 16 (Q8_0: 32) and at most 576";

// Raises ValueError for heads that no kernel takes.
void require_heads(const AttentionProblem &p) {
    const auto whole = [](CacheType type, int64_t dim) { return dim % (has_blocks(type) ? kCacheBlock : kLanes) == 0; };
    if (p.n_kv < 1 || p.n_kv_head < 1 || p.n_head % p.n_kv_head != 0 || !whole(p.k_type, p.dim_k) ||
        !whole(p.v_type, p.dim_v) || p.dim_k > kLargestHead || p.dim_v < 1) {
        throw py::value_error(kHeads);
    }
}

// Of a layer that is not exact by default.
PackSettings pack_of(const Settings &given, int64_t n_kv_head) {
    StatePackKv settings;
    set_all(given, [&](const std::string &name, const std::string &value) {
        return StatePackKv::set(settings, name, GivenSetting(name, value));
    });
    std::pair<int64_t, int64_t> missing{-1, -1};
    PackSettings found = pack_settings_of(settings.made(), kLayer, n_kv_head, missing);
    if (missing.first >= 0) {
        throw py::value_error("there is no KV head " + std::to_string(missing.second));
    }
    return found;
}

EventSpec event_of(const Settings &given) {
    SkipSettings settings;
    settings.event.emplace().target = Target::kv;
    set_all(given,
            [&](const std::string &name, const std::string &value) { return settings.set("event." + name, value); });
    const EventSettings &event = *settings.event;
    return event.made(event.theta().front().second, event.topk.front().second, 1.0);
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
    p.dim_v = v_by_channel ? v.shape(1) : p.v_type == CacheType::f16 ? v.shape(2) : v.shape(2) / kQ8Bytes * kCacheBlock;
    require_heads(p);
    if (p.v_type == CacheType::q8_0 && v.shape(2) % kQ8Bytes != 0) {
        throw py::value_error(kHeads);
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
                                             const Settings &pack, bool repack, bool compare, bool v_by_channel,
                                             const Settings &event, const std::vector<int64_t> &written) {
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
        const PackSettings settings = pack.empty() ? PackSettings() : pack_of(pack, p.n_kv_head);
        const bool packed = !pack.empty() && settings.mode != PackMode::exact;
        PackOutcome outcome;
        const EventSpec spec = event.empty() ? EventSpec{} : event_of(event);
        remember(p, packed ? &settings : nullptr, spec, written, outcome);
        {
            const py::gil_scoped_release release; // arrays are kept alive by the caller's references
            attention_.reserve(p, packed, compare);
            const bool changes = spec.enabled && !events_->paused();
            const bool fresh = packed && (repack || !pack_->calibrated);
            together(threads, [&](int ith) {
                if (packed) {
                    attention_.packed(p, *pack_, settings, fresh, compare, outcome, ith, threads);
                } else if (changes) {
                    events_->attend(p, attention_, spec.budget_ns, ith, threads);
                } else {
                    attention_.exact(p, ith, threads);
                }
            });
        }
        return py::typing::Tuple<Floats, FloatDict>(py::make_tuple(out, told(outcome)));
    }

    // Any number of tokens in any number of caches, exact.
    Floats batch(const Floats &q, const py::array &k, const py::array &v, const py::array &mask, float scale,
                 int threads) {
        if (threads < 1 || q.ndim() != 4 || k.ndim() != 4 || v.ndim() != 4 || q.shape(0) < 1 || q.shape(1) < 1) {
            throw py::value_error("threads must be 1 or more, q, k and v [n_stream, …] of four dimensions");
        }
        AttentionProblem p;
        p.n_stream = q.shape(0);
        p.n_query = q.shape(1);
        p.n_head = q.shape(2);
        p.dim_k = q.shape(3);
        p.n_kv = k.shape(1);
        p.n_kv_head = k.shape(2);
        p.dim_v = v.shape(3);
        require_array(k, "k", "f", 2, {p.n_stream, -1, -1, p.dim_k});
        require_array(v, "v", "f", 2, {p.n_stream, p.n_kv, p.n_kv_head, -1});
        require_array(mask, "mask", "f", 2, {p.n_stream, p.n_query, p.n_kv});
        require_heads(p);
        p.q = q.data();
        p.q_stride = p.dim_k;
        p.q_query = p.n_head * p.q_stride;
        p.q_stream = p.n_query * p.q_query;
        p.k = static_cast<const uint8_t *>(k.data());
        p.v = static_cast<const uint8_t *>(v.data());
        p.k_head = 2 * p.dim_k;
        p.k_row = p.n_kv_head * p.k_head;
        p.k_stream = p.n_kv * p.k_row;
        p.v_head = 2 * p.dim_v;
        p.v_row = p.n_kv_head * p.v_head;
        p.v_stream = p.n_kv * p.v_row;
        p.mask = static_cast<const uint16_t *>(mask.data());
        p.mask_query = p.n_kv;
        p.mask_stream = p.n_query * p.n_kv;
        p.scale = scale;
        Floats out({p.n_stream, p.n_query, p.n_head, p.dim_v});
        p.out = out.mutable_data();
        p.out_stride = p.dim_v;
        p.out_query = p.n_head * p.out_stride;
        p.out_stream = p.n_query * p.out_query;
        const py::gil_scoped_release release;
        attention_.reserve(p, false, false);
        together(threads, [&](int ith) { attention_.exact(p, ith, threads); });
        return out;
    }

private:
    // Makes the memory that the operation needs, unless it is there.
    void remember(const AttentionProblem &p, const PackSettings *settings, const EventSpec &spec,
                  const std::vector<int64_t> &written, PackOutcome &outcome) {
        outcome.heads.resize(static_cast<size_t>(p.n_kv_head));
        if (settings != nullptr && (pack_ == nullptr || !pack_->fits(p, settings->mode))) {
            pack_ = std::make_unique<KeyPack>(p.n_kv_head, p.dim_k, p.n_kv, settings->mode, settings->recent);
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
        FloatDict found;
        for (size_t i = 0; i < std::size(kEventCounts); ++i) {
            found[kEventCounts[i]] = static_cast<double>(event_counters_.at(i)); // since the first call
        }
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
    py::class_<PyAttentionRun>(m, "AttentionRun", "Attention on arrays; keeps the bits of one token's keys.")
        .def(py::init<>())
        .def(
            "__call__", &PyAttentionRun::run, py::arg("q"), py::arg("k"), py::arg("v"), py::arg("mask") = py::none(),
            py::kw_only(), py::arg("scale") = 1.0F, py::arg("max_bias") = 0.0F, py::arg("softcap") = 0.0F,
            py::arg("sinks") = py::none(), py::arg("threads") = 1, py::arg("pack") = Settings{},
            py::arg("repack") = false, py::arg("compare") = false, py::arg("v_by_channel") = false,
            py::arg("event") = Settings{}, py::arg("written") = std::vector<int64_t>{},
            "q float32[n_head, dim_k], k float16[n_kv, n_kv_head, dim_k], v float16[n_kv, n_kv_head, dim_v], mask\n"
            "float16 or float32[n_kv] (0, a bias, or -inf), sinks float32[n_head]. k and v are uint8 for the bytes of\n"
            "Q8_0; with `v_by_channel` v is float16[n_kv_head, dim_v, n_kv]. With `pack`, settings of\n"
            "state_pack_kv by their own names (layers: of layer 2), keys are chosen by their bits, which are made at\n"
            "the first call and with `repack`; `compare` gives the exact result, and how far the other one was. With\n"
            "`event`, settings of event by their own names, only windows of 128 positions are computed that have\n"
            "changed since earlier calls, of which the rows `written` tell what is new. Returns (float32[n_head,\n"
            "dim_v], what was done). Raises ValueError for shapes that do not fit.")
        .def("batch", &PyAttentionRun::batch, py::arg("q"), py::arg("k"), py::arg("v"), py::arg("mask"), py::kw_only(),
             py::arg("scale") = 1.0F, py::arg("threads") = 1,
             "Attention of several tokens in several caches to all keys.\n\n"
             "q float32[n_stream, n_query, n_head, dim_k], k and v float16[n_stream, n_kv, n_kv_head, dim], mask\n"
             "float16[n_stream, n_query, n_kv]. Returns float32[n_stream, n_query, n_head, dim_v]: of every token the\n"
             "same bits whatever the others are, of up to 16 a stream those that it gets alone. Raises ValueError for "
             "shapes that do not fit.");
}

} // namespace seeddelta
