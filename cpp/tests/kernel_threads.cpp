// Several threads give the bits of one. What a build with ThreadSanitizer looks at: every operation that threads share
// a workspace, a barrier or a result in.
#include <algorithm>

#include "attention/attention_events.hpp"
#include "encode/lane_blocks.hpp"
#include "format/column_lanes.hpp"
#include "format/float16.hpp"
#include "format/parallel.hpp"
#include "gating/compose.hpp"
#include "kernel_test.hpp"
#include "seeddelta/columns.hpp"
#include "seeddelta/compute.hpp"
#include "seeddelta/encode.hpp"

namespace kernel_test {

namespace {

// `f` gives a vector for a number of threads.
template <class F>
void compare_threads(Random &r, const std::string &what, F &&f) {
    const int threads = static_cast<int>(r.between(2, 4));
    isa_select(isa_available().back());
    same(isa_available().back().c_str(), "threads", what + " threads " + std::to_string(threads), f(1), f(threads));
}

// One after the other in the same workspace; the last one uses the activations of the one before.
void products(Random &r) {
    const RandomWeight w(r);
    const int64_t tokens = r.between(0, 1) == 0 ? 1 : r.between(2, 19);
    const auto x = r.reals(2 * tokens * w.ctx.n_in);
    compare_threads(r, w.what, [&](int nth) {
        std::vector<float> y(static_cast<size_t>(3 * tokens * w.ctx.n_out));
        Workspace workspace;
        ComputeStatus status;
        together(nth, [&](int ith) {
            for (int64_t i = 0; i < 3; ++i) {
                seeddelta_compute_threaded(w.ctx, x.data() + std::min<int64_t>(i, 1) * tokens * w.ctx.n_in, tokens,
                                           w.ctx.n_in * 4, y.data() + i * tokens * w.ctx.n_out, w.ctx.n_out * 4,
                                           workspace, ith, nth, i == 2, status);
            }
        });
        return y;
    });
}

void experts(Random &r) {
    seeddelta_ctx c;
    c.n_experts = r.between(2, 5);
    c.n_out = r.between(1, 70);
    c.n_in = r.between(1, 200);
    c.base = BaseKind::lanes;
    c.base_scale = 0.1F;
    c.lane_code = random_code(r);
    c.lane_lines = c.lane_code->lines(c.n_in);
    const auto codes = r.words<uint8_t>(c.n_experts * c.n_tiles() * c.tile_bytes());
    const auto scale = r.halves(c.n_experts * c.n_out);
    c.codes = codes.data();
    c.row_scale_f16 = scale.data();
    c.scheme = ResidualScheme::coo;
    c.residual_size = 2;
    std::vector<uint16_t> index;
    for (int64_t i = 0; i < c.n_experts * c.n_out * 2; ++i) {
        index.push_back(static_cast<uint16_t>(r.between(0, c.n_in - 1)));
    }
    const auto value = r.halves(c.n_experts * c.n_out * 2);
    c.residual_index = index.data();
    c.residual_vals_f16 = value.data();
    ExpertBatch batch;
    batch.n_tokens = r.between(1, 9);
    batch.used = r.between(1, 2);
    batch.inputs = r.between(0, 1) == 0 ? 1 : batch.used;
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < batch.pairs(); ++i) {
        ids.push_back(static_cast<int32_t>(r.between(0, c.n_experts))); // the last one is not there
    }
    const auto x = r.reals(batch.n_tokens * batch.inputs * c.n_in);
    batch.ids = reinterpret_cast<const uint8_t *>(ids.data());
    batch.id_stride = 4;
    batch.token_stride = 4 * batch.used;
    batch.x = x.data();
    batch.x_stride = c.n_in * 4;
    batch.y_stride = c.n_out * 4;
    compare_threads(r, "experts", [&](int nth) {
        std::vector<float> y(static_cast<size_t>(batch.pairs() * c.n_out));
        ExpertBatch mine = batch;
        mine.y = y.data();
        Workspace workspace;
        ComputeStatus status;
        together(nth, [&](int ith) {
            seeddelta_compute_experts(c, mine, workspace, ith, nth, false, status);
            seeddelta_compute_experts(c, mine, workspace, ith, nth, true, status);
        });
        return y;
    });
}

GateSpec random_gate(Random &r, int64_t n_in) {
    GateSpec spec;
    spec.n_in = n_in;
    spec.prompts = true;
    spec.kwta.enabled = true;
    spec.kwta.keep = 0.4;
    switch (r.between(0, 2)) {
    case 0:
        spec.event.enabled = true;
        spec.event.gap_every = 2;
        spec.event.gap_tolerance = 10.0F;
        break;
    case 1:
        spec.pack.enabled = true;
        spec.pack.eps = 0.3F;
        spec.pack.density = 1.0F;
        break;
    default:
        break;
    }
    return spec;
}

// Tokens, a prompt, and tokens again, by one gate.
void columns(Random &r) {
    ColumnWeight w;
    w.kind = static_cast<ColumnKind>(r.between(0, 1));
    w.n_out = 64 * r.between(1, 6);
    w.n_in = r.between(1, 200);
    w.rotation_block = w.kind == ColumnKind::f16 || r.between(0, 1) == 0 ? 0 : 64;
    const auto half = r.halves(w.n_in * w.n_out);
    w.lane_code = random_code(r);
    const auto lanes = r.words<uint8_t>(w.n_in * column_streams(w.n_out) * column_lines(*w.lane_code));
    const auto scale = r.reals(w.n_in, 0.1F);
    w.f16 = half.data();
    w.codes = lanes.data();
    w.input_scale = scale.data();
    const GateSpec spec = random_gate(r, w.n_in);
    constexpr int64_t kTokens[] = {1, 1, 5, 1, 1, 1};
    constexpr int64_t kAll = 10;
    const auto x = r.reals(kAll * w.n_in);
    compare_threads(r, "columns " + std::to_string(static_cast<uint32_t>(w.kind)), [&](int nth) {
        std::vector<float> y(static_cast<size_t>(kAll * w.n_out));
        std::vector<float> state(static_cast<size_t>(w.n_out));
        Workspace workspace;
        ComputeStatus status;
        Gate gate(spec);
        int64_t first = 0;
        for (const int64_t tokens : kTokens) {
            together(nth, [&](int ith) {
                columns_compute_threaded(w, &gate, x.data() + first * w.n_in, tokens, w.n_in * 4,
                                         y.data() + first * w.n_out, w.n_out * 4, workspace, ith, nth, false, status,
                                         state.data());
            });
            first += tokens;
        }
        return y;
    });
}

constexpr int64_t kRows = 400; // of a cache

struct RandomAttention {
    AttentionProblem p;
    std::vector<uint16_t> k, v, mask;
    std::vector<float> q, mask32;

    explicit RandomAttention(Random &r) {
        p.n_kv_head = r.between(1, 3);
        p.n_head = p.n_kv_head * r.between(1, 3);
        p.dim_k = kLanes * r.between(1, 4);
        p.dim_v = kLanes * r.between(1, 4);
        p.k_head = 2 * p.dim_k;
        p.k_row = p.k_head * p.n_kv_head;
        p.v_by_channel = r.between(0, 1) == 0;
        p.v_head = 2 * p.dim_v * (p.v_by_channel ? kRows : 1);
        p.v_row = p.v_by_channel ? 2 * kRows : p.v_head * p.n_kv_head;
        k = r.halves(kRows * p.n_kv_head * p.dim_k);
        v = r.halves(kRows * p.n_kv_head * p.dim_v);
        q = r.reals(p.n_head * p.dim_k, 3.0F);
        mask.resize(static_cast<size_t>(kRows));
        for (uint16_t &m : mask) {
            m = r.between(0, 5) == 0 ? 0xFC00 : 0;
        }
        p.k = reinterpret_cast<const uint8_t *>(k.data());
        p.v = reinterpret_cast<const uint8_t *>(v.data());
        p.q = q.data();
        p.q_stride = p.dim_k;
        mask32.resize(mask.size());
        std::transform(mask.begin(), mask.end(), mask32.begin(), half_to_float);
        if (p.v_by_channel) { // as llama.cpp has both
            p.mask32 = mask32.data();
        } else {
            p.mask = mask.data();
        }
        p.out_stride = p.dim_v;
    }
    RandomAttention(const RandomAttention &) = delete;
    RandomAttention &operator=(const RandomAttention &) = delete;
};

PackSettings random_settings(Random &r, int64_t n_kv_head) {
    PackSettings settings;
    settings.mode = r.between(0, 1) == 0 ? PackMode::binary : PackMode::ternary;
    settings.popcount = r.between(0, 1) == 0;
    settings.refine = r.between(0, 3) != 0;
    settings.recent = 8;
    if (r.between(0, 1) == 0) {
        settings.heads.resize(static_cast<size_t>(n_kv_head), {false, 0.3F});
        settings.heads[0].exact = true;
    }
    return settings;
}

// Exact, then by bits with a comparison, while the cache grows.
void attention(Random &r) {
    const RandomAttention cache(r);
    const AttentionProblem &p = cache.p;
    const PackSettings settings = random_settings(r, p.n_kv_head);
    const int64_t lengths[] = {r.between(1, 300), r.between(301, 399), kRows};
    compare_threads(r, "attention", [&](int nth) {
        std::vector<float> out(static_cast<size_t>(4 * p.n_head * p.dim_v));
        Attention compute;
        KeyPack pack(p.n_kv_head, p.dim_k, kRows, settings.mode, settings.recent);
        AttentionProblem mine = p;
        for (int64_t i = 0; i < 4; ++i) {
            mine.n_kv = lengths[std::min<int64_t>(i, 2)];
            mine.out = out.data() + i * p.n_head * p.dim_v;
            PackOutcome outcome;
            outcome.heads.resize(static_cast<size_t>(p.n_kv_head));
            compute.reserve(mine, i > 0, i > 1);
            together(nth, [&](int ith) {
                if (i == 0) {
                    compute.exact(mine, ith, nth);
                } else {
                    compute.packed(mine, pack, settings, i < 3, i > 1, outcome, ith, nth);
                }
            });
            out.push_back(static_cast<float>(outcome.kept.load()));
            out.push_back(static_cast<float>(outcome.gap));
        }
        return out;
    });
}

// With events.
void attention_events(Random &r) {
    const RandomAttention cache(r);
    const AttentionProblem &p = cache.p;
    EventSpec spec;
    spec.theta = static_cast<float>(r.between(0, 2)) * 0.05F;
    spec.gap_every = static_cast<int>(r.between(0, 3));
    spec.gap_tolerance = 100.0F;
    compare_threads(r, "attention with events", [&](int nth) {
        std::vector<float> out;
        Attention compute;
        AttentionProblem mine = p;
        mine.n_kv = kRows;
        EventCounters counters;
        EventMemory memory(spec, p, kRows, counters);
        for (int64_t i = 0; i < 8; ++i) {
            std::vector<float> result(static_cast<size_t>(p.n_head * p.dim_v));
            auto turned = cache.q;
            turned[static_cast<size_t>(i)] += 0.1F;
            mine.q = turned.data();
            mine.out = result.data();
            memory.written(kRows - 1 - i);
            compute.reserve(mine, false, false);
            together(nth, [&](int ith) { memory.attend(mine, compute, 0.0, ith, nth); });
            out.insert(out.end(), result.begin(), result.end());
            out.push_back(static_cast<float>(counters[EventCount::sent]));
        }
        return out;
    });
}

void encoders(Random &r) {
    const int64_t n_out = r.between(1, 40);
    const int64_t n_in = r.between(16, 70);
    const auto weights = r.reals(n_out * n_in);
    SeedSearch search;
    search.choices = 20;
    compare_threads(r, "encoders", [&](int nth) {
        std::vector<uint16_t> found(static_cast<size_t>(n_out));
        seed_search(weights.data(), n_out, n_in, search, nullptr, nullptr, found.data(), nullptr, nth);
        std::vector<uint32_t> index(static_cast<size_t>(n_out * 3));
        std::vector<float> value(index.size());
        coo_select(weights.data(), n_out, n_in, 3, nullptr, index.data(), value.data(), nth);
        found.insert(found.end(), index.begin(), index.end());
        return found;
    });
}

// A short row: an emulator takes seconds for its search and minutes for those of forty longer ones.
void lanes_encoder(Random &r) {
    const int64_t n_out = 1;
    const int64_t n_in = r.between(9, 20);
    const auto weights = r.reals(n_out * n_in);
    auto matrix = r.reals(n_in * n_in, 0.05F);
    for (int64_t i = 0; i < n_in; ++i) {
        matrix[static_cast<size_t>(i * n_in + i)] = 1.0F; // of the triangles
    }
    LanesSpec spec;
    spec.code = random_code(r);
    spec.feedback = r.between(0, 1) == 0 ? matrix.data() : nullptr;
    spec.beam_width = int64_t{1} << r.between(0, 2);
    spec.groups = {spec.code->stream_steps(n_in)};
    seeddelta_ctx shape;
    shape.n_out = n_out;
    shape.lane_lines = spec.code->lines(n_in);
    compare_threads(r, "encoder of byte lanes", [&](int nth) {
        std::vector<uint8_t> codes(static_cast<size_t>(shape.n_tiles() * shape.tile_bytes()));
        std::vector<uint16_t> scale(static_cast<size_t>(n_out));
        lanes_encode(weights.data(), n_out, n_in, spec, nullptr, codes.data(), scale.data(), nth);
        codes.insert(codes.end(), scale.begin(), scale.end());
        return codes;
    });
}

// A few streams of 16 values: some thirty searches each, which take minutes in an emulator when there are many.
void column_lanes_encoder(Random &r) {
    const int64_t n_out = r.between(1, 64);
    const int64_t n_in = r.between(1, 3);
    const auto weights = r.reals(n_in * n_out);
    const auto matrix = r.reals(n_in * n_in, 0.05F);
    LanesSpec spec;
    spec.code = random_code(r);
    spec.feedback = r.between(0, 1) == 0 ? matrix.data() : nullptr;
    compare_threads(r, "encoder of byte lanes by columns", [&](int nth) {
        std::vector<uint8_t> codes(static_cast<size_t>(n_in * column_streams(n_out) * column_lines(*spec.code)));
        std::vector<uint16_t> scale(static_cast<size_t>(n_in));
        columns_lanes_encode(weights.data(), n_out, n_in, spec, codes.data(), scale.data(), nth);
        codes.insert(codes.end(), scale.begin(), scale.end());
        return codes;
    });
}

} // namespace

void check_threads(Random &r) {
    products(r);
    experts(r);
    columns(r);
    attention(r);
    attention_events(r);
    encoders(r);
    if (r.between(0, 4) == 0) {
        column_lanes_encoder(r);
    }
    if (r.between(0, 9) == 0) {
        lanes_encoder(r);
    }
}

} // namespace kernel_test
