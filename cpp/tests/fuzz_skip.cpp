// libFuzzer: what is skipped. Gates of any options choose inputs of any values for products over columns; queries, keys
// and masks of any bits go through attention, whole and over the keys that their bits choose.
#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>

#include "attention/attention_events.hpp"
#include "format/column_lanes.hpp"
#include "format/float16.hpp"
#include "fuzz_bytes.hpp"
#include "gating/compose.hpp"
#include "seeddelta/compute.hpp"
#include "seeddelta/isa.hpp"
#include "seeddelta/make_weight.hpp"

using namespace seeddelta;

namespace {

float finite_or_zero(float x) {
    return std::isfinite(x) ? x : 0.0F;
}

std::vector<float> finite(FuzzBytes &in, int64_t n) {
    auto v = in.floats(n);
    std::transform(v.begin(), v.end(), v.begin(), finite_or_zero);
    return v;
}

// A number of an option: 0 or more, mostly small, now and then of any size.
float amount(FuzzBytes &in) {
    const float any = std::fabs(in.value<float>());
    return in.between(0, 7) == 0 ? finite_or_zero(any) : in.real(0.0F, 2.0F);
}

struct Weight {
    DenseColumns dense; // behind w, or not used
    ColumnWeight w;
    std::unique_ptr<CheckedWeight> lanes; // or none, behind w
    std::vector<int8_t> bytes;
    std::vector<float> scale;

    explicit Weight(FuzzBytes &in) {
        const bool by_half = in.flag();
        const int64_t n_out = in.flag() ? in.between(1, 140) : 64 * in.between(1, 3);
        const int64_t n_in = in.between(1, 130);
        if (by_half) {
            const auto half = in.array<uint16_t>(n_in * n_out);
            const auto rows = [&](int64_t begin, int64_t end, float *out) { // what is not finite is refused
                std::transform(half.data() + begin * n_in, half.data() + end * n_in, out,
                               [](uint16_t h) { return finite_or_zero(half_to_float(h)); });
            };
            dense = DenseColumns("fuzzed", n_out, n_in, rows);
            w = dense.weight();
            return;
        }
        scale = finite(in, n_in);
        const Array scales = Array::of(scale.data(), {n_in});
        const int rotation = in.flag() ? static_cast<int>(std::min<int64_t>(n_out & -n_out, 64)) : 0;
        const auto seed = in.value<uint64_t>();
        lanes = make_lanes(in, n_out, n_in, scales, rotation, seed);
        w = lanes->columns();
    }

    std::unique_ptr<CheckedWeight> make_lanes(FuzzBytes &in, int64_t n_out, int64_t n_in, const Array &scales,
                                              int rotation, uint64_t seed) {
        const auto number = static_cast<int>(any_code(in)->number);
        const int64_t streams = column_streams(n_out);
        const int64_t lines = column_lines(*lane_code(static_cast<uint32_t>(number)));
        bytes = in.array<int8_t>(n_in * streams * lines);
        return std::make_unique<CheckedWeight>("fuzzed",
                                               WeightArrays{.n_out = n_out,
                                                            .n_in = n_in,
                                                            .by_column = true,
                                                            .base_kind = static_cast<uint32_t>(BaseKind::lanes),
                                                            .base_seed = seed,
                                                            .base_scale = 1.0F,
                                                            .rotation_block = rotation,
                                                            .lane_code = number,
                                                            .codes = Array::of(bytes.data(), {n_in, streams, lines}),
                                                            .row_scale = scales});
    }
};

EventSpec event_of(FuzzBytes &in) {
    EventSpec event;
    event.enabled = true;
    event.theta = amount(in);
    event.most = std::max(in.real(0.0F, 1.0F), 1e-4F);
    event.quorum = in.flag() ? 1.0F : std::max(in.real(0.0F, 1.0F), 1e-4F);
    event.beta = amount(in);
    event.lambda = amount(in);
    event.age_max = static_cast<int>(in.between(0, 5));
    event.budget_ns = in.flag() ? 0.0 : static_cast<double>(amount(in)) * 1e3;
    event.gap_every = static_cast<int>(in.between(0, 3));
    event.gap_tolerance = amount(in);
    event.rearm = static_cast<int>(in.between(0, 3));
    return event;
}

// What settings can say, and more.
GateSpec gate_of(FuzzBytes &in, int64_t n_in, std::vector<float> &norm) {
    static constexpr int kBlocks[] = {1, 16, 32, 64};
    GateSpec spec;
    spec.n_in = n_in;
    spec.prompts = in.flag();
    spec.kwta.enabled = in.flag();
    spec.kwta.keep = std::max(in.real(0.0F, 1.0F), 1e-4F);
    spec.kwta.keep_count = in.flag() ? 0 : in.between(0, n_in);
    spec.kwta.duty = static_cast<int>(in.between(1, 3));
    if (in.flag()) {
        norm = finite(in, n_in);
        spec.kwta.norm = norm.data();
    }
    if (in.between(0, 2) == 0) {
        spec.event = event_of(in);
        return spec;
    }
    spec.kwta.block = kBlocks[in.between(0, 3)];
    spec.kwta.renormalize = in.flag();
    spec.kwta.temperature = amount(in);
    spec.kwta.threshold = in.flag() ? -1.0F : amount(in);
    spec.pack = {.enabled = in.flag(),
                 .zeros = in.flag(),
                 .ternary = in.flag(),
                 .eps = amount(in),
                 .relative = amount(in),
                 .density = amount(in),
                 .hysteresis = in.real(0.0F, 0.99F),
                 .vector_popcount = in.flag()};
    return spec;
}

void select(FuzzBytes &in, Gate &gate, int64_t n) {
    const auto x = in.floats(n);
    std::vector<int32_t> score(static_cast<size_t>(n));
    std::vector<int32_t> index(static_cast<size_t>(n));
    std::vector<uint64_t> bits(static_cast<size_t>(2 * bitmap_words(n)));
    std::vector<float> value(static_cast<size_t>(n));
    bool is_finite = true;
    const int64_t found = gate.select(x.data(), 0, {score.data(), bits.data()}, index.data(), value.data(), is_finite);
    gate.advance(1);
    require(found >= 0 && found <= n, "more units than there are");
    for (int64_t i = 0; i < found; ++i) {
        const auto at = static_cast<size_t>(i);
        require(index[at] < n && (i == 0 ? index[0] >= 0 : index[at - 1] < index[at]), "units do not ascend below n");
    }
}

// Several products of one gate: its memory is part of what is looked at.
void columns(FuzzBytes &in) {
    const Weight weight(in);
    const ColumnWeight &w = weight.w;
    std::vector<float> norm;
    std::optional<Gate> gate;
    if (in.between(0, 7) != 0) {
        gate.emplace(gate_of(in, w.n_in, norm));
    }
    Workspace workspace;
    ComputeStatus status;
    std::vector<float> state(static_cast<size_t>(w.n_out));
    const int64_t products = in.between(1, 4);
    for (int64_t i = 0; i < products; ++i) {
        const int64_t tokens = in.between(0, 3) == 0 ? in.between(2, 5) : 1;
        const auto x = in.floats(tokens * w.n_in);
        std::vector<float> y(static_cast<size_t>(tokens * w.n_out));
        const ColumnCounts counts =
            columns_compute_threaded(w, gate ? &*gate : nullptr, x.data(), tokens, w.n_in * 4, y.data(), w.n_out * 4,
                                     workspace, 0, 1, false, status, state.data());
        require(counts.active >= 0 && counts.active <= counts.total, "more units than there are");
    }
    if (gate && !gate->spec().event.enabled) {
        gate->profile(in.flag());
        select(in, *gate, w.n_in);
        gate->tune(std::max(in.real(0.0F, 1.0F), 1e-4F), in.flag() ? -1.0F : amount(in));
        select(in, *gate, w.n_in);
    }
}

PackSettings pack_of(FuzzBytes &in, int64_t n_kv_head) {
    PackSettings s;
    s.mode = in.flag() ? PackMode::binary : PackMode::ternary;
    s.eps = amount(in);
    s.popcount = in.flag();
    s.refine = in.flag();
    s.budget = std::max(in.between(0, 3) == 0 ? 1.0F : amount(in), 1e-4F);
    s.mass = in.flag() ? 0.0F : in.real(0.0F, 1.0F);
    s.sinks = in.between(0, 5);
    s.recent = in.between(0, 70);
    s.density = std::max(in.real(0.0F, 1.0F), 1e-4F);
    s.negligible = in.flag() ? 0.0F : in.real(0.0F, 0.99F);
    s.gamma_chunk = in.between(0, 130);
    s.gamma_cap = std::max(amount(in), 1e-4F);
    s.audits = in.between(0, 3);
    const bool own = in.flag();
    for (int64_t head = 0; own && head < n_kv_head; ++head) {
        s.heads.push_back({in.flag(), std::max(amount(in), 1e-4F)});
    }
    return s;
}

CacheType cache_of(FuzzBytes &in, int64_t &dim) {
    const auto type = static_cast<CacheType>(in.between(0, 3));
    dim = has_blocks(type) ? kCacheBlock * in.between(1, 2) : kLanes * in.between(1, 3);
    return type;
}

// Numbers of float16 around 0, or any bits.
std::vector<uint8_t> cache(FuzzBytes &in, int64_t bytes) {
    auto v = in.array<uint8_t>(bytes);
    if (in.flag()) {
        for (size_t i = 1; i < v.size(); i += 2) {
            v[i] &= 0xBFU;
        }
    }
    return v;
}

// One cache of keys and values, and what attends to it.
struct Cache {
    AttentionProblem p;
    int64_t capacity;
    std::vector<uint8_t> k, v;
    std::vector<float> sinks;

    explicit Cache(FuzzBytes &in) {
        p.n_kv_head = in.between(1, 2);
        p.n_head = p.n_kv_head * in.between(1, 3);
        p.k_type = cache_of(in, p.dim_k);
        p.v_type = cache_of(in, p.dim_v);
        capacity = in.between(0, 15) == 0 ? in.between(129, 300) : in.between(1, 70);
        p.k_head = cache_row_bytes(p.k_type, p.dim_k);
        p.k_row = p.k_head * p.n_kv_head;
        p.v_by_channel = p.v_type == CacheType::f16 && in.flag();
        p.v_head = cache_row_bytes(p.v_type, p.dim_v) * (p.v_by_channel ? capacity : 1);
        p.v_row = p.v_by_channel ? 2 * capacity : p.v_head * p.n_kv_head;
        k = cache(in, capacity * p.k_row);
        v = cache(in, p.v_by_channel ? p.v_head * p.n_kv_head : capacity * p.v_row);
        sinks = in.floats(p.n_head);
        p.k = k.data();
        p.v = v.data();
        p.scale = in.flag() ? 1.0F : in.value<float>();
        p.softcap = in.flag() ? 0.0F : in.value<float>();
        p.max_bias = in.between(0, 3) == 0 ? amount(in) : 0.0F;
        p.sinks = in.flag() ? sinks.data() : nullptr;
    }
};

// Operations over one cache, whose rows are written in between, seen by the pack or not.
void attention(FuzzBytes &in) {
    Cache kv(in);
    AttentionProblem &p = kv.p;
    const PackSettings settings = pack_of(in, p.n_kv_head);
    KeyPack pack(p.n_kv_head, p.dim_k, kv.capacity, settings.mode, settings.recent);
    Attention compute;
    EventCounters counters;
    EventMemory memory(event_of(in), p, kv.capacity, counters);
    const int64_t operations = in.between(1, 3);
    for (int64_t i = 0; i < operations; ++i) {
        p.n_kv = in.between(1, kv.capacity);
        const auto q = in.floats(p.n_head * p.dim_k);
        auto mask = in.array<uint16_t>(p.n_kv);
        if (in.flag()) { // mostly what llama.cpp writes
            for (uint16_t &m : mask) {
                m = (m & 3U) == 0 ? 0xFC00U : 0;
            }
        }
        std::vector<float> out(static_cast<size_t>(p.n_head * p.dim_v));
        p.q = q.data();
        p.q_stride = p.dim_k;
        std::vector<float> mask32(mask.size());
        std::transform(mask.begin(), mask.end(), mask32.begin(), half_to_float);
        const int64_t kind_of_mask = in.between(0, 3);
        p.mask = kind_of_mask < 2 ? mask.data() : nullptr;
        p.mask32 = kind_of_mask == 2 ? mask32.data() : nullptr;
        p.out = out.data();
        p.out_stride = p.dim_v;
        PackOutcome outcome;
        outcome.heads.resize(static_cast<size_t>(p.n_kv_head));
        const int64_t kind = in.between(0, 7); // mostly with bits
        const bool compare = (kind & 1) != 0;
        compute.reserve(p, kind != 0, compare);
        if (kind == 0) {
            compute.exact(p, 0, 1);
        } else if (kind < 3 && p.masked() && p.max_bias == 0.0F) {
            if (!memory.paused()) {
                memory.attend(p, compute, amount(in), 0, 1);
            }
            require(counters[EventCount::sent] <= counters[EventCount::seen], "more windows than there are");
        } else {
            pack.outgrow();
            compute.packed(p, pack, settings, in.flag() || !pack.calibrated, compare, outcome, 0, 1);
        }
        require(outcome.kept.load() <= outcome.visible.load(), "more positions than there are");
        const int64_t row = in.between(0, kv.capacity - 1);
        std::fill_n(kv.k.begin() + row * p.k_row, p.k_row, in.value<uint8_t>());
        if (in.flag()) {
            pack.written(row);
            memory.written(row);
        }
    }
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const std::vector<std::string> isas = isa_available();
    FuzzBytes in(data, size);
    isa_select(isas[in.value<uint8_t>() % isas.size()]);
    if (in.flag()) {
        attention(in);
    } else {
        columns(in);
    }
    return 0;
}
