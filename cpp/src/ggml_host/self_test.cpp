#include "ggml_host/self_test.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <functional>
#include <utility>

#include "format/float16.hpp"
#include "format/splitmix64.hpp"
#include "ggml_host/add_weights.hpp"
#include "ggml_host/graph_hook.hpp"
#include "ggml_host/prober.hpp"
#include "seeddelta/compute.hpp"
#include "simd/kernel_table.hpp"

namespace seeddelta {

namespace {

constexpr int64_t kOut = 40, kIn = 64, kTokens = 3, kExperts = 2;
constexpr int64_t kHeads = 2, kDim = 32, kPositions = 64, kVisible = 50, kMaskRows = 64;
constexpr uint32_t kCode = 8;         // byte lanes of 4 bits
constexpr float kTolerance = 0.03F;   // of the largest value: activations have 8 bits
constexpr size_t kMemory = 1U << 21U; // of a graph

// Numbers from -1 to 1, other ones at each call.
class Noise {
public:
    uint64_t bits() { return splitmix64_at(7, count_++); }
    float value() { return static_cast<float>(bits() >> 40U) * 0x1p-23F - 1.0F; }
    std::vector<float> values(int64_t count) {
        std::vector<float> found(static_cast<size_t>(count));
        std::generate(found.begin(), found.end(), [this] { return value(); });
        return found;
    }

private:
    uint64_t count_ = 0;
};

std::vector<uint16_t> halves(const std::vector<float> &values) {
    std::vector<uint16_t> found(values.size());
    std::transform(values.begin(), values.end(), found.begin(), float_to_half);
    return found;
}

// Tensors and nodes in a context of their own.
class Graph {
public:
    Graph(const Symbols &symbols, const GgmlAbi &abi)
        : symbols_(symbols), abi_(abi), memory_(kMemory / sizeof(uint64_t)),
          context_(symbols.get<void *(*)(InitParams)>("ggml_init")({kMemory, memory_.data(), false})) {
        if (context_ == nullptr) {
            fail("ggml_init returned NULL");
        }
    }
    ~Graph() { symbols_.get<void (*)(void *)>("ggml_free")(context_); }
    Graph(const Graph &) = delete;
    Graph &operator=(const Graph &) = delete;

    template <class T>
    void *tensor(int32_t type, std::array<int64_t, 3> ne, const std::vector<T> &data) {
        using Make = void *(*)(void *, int32_t, int64_t, int64_t, int64_t, int64_t);
        void *made = symbols_.get<Make>("ggml_new_tensor_4d")(context_, type, ne[0], ne[1], ne[2], 1);
        std::memcpy(abi_.data_of(made), data.data(), data.size() * sizeof(T));
        return made;
    }
    // Of a weight: what is not computed by us is NaN.
    void *placeholder(std::array<int64_t, 3> ne, const char *name) {
        const std::vector<uint16_t> nan(static_cast<size_t>(ne[0] * ne[1] * ne[2]), 0xFFFF);
        void *made = tensor(kTypeF16, ne, nan);
        symbols_.get<void *(*)(void *, const char *)>("ggml_set_name")(made, name);
        return made;
    }
    template <class... Arguments>
    void *node(const char *function, Arguments... arguments) {
        return symbols_.get<void *(*)(void *, Arguments...)>(function)(context_, arguments...);
    }

    // Computes two nodes, of which the hook sees the first. Empty, or what is wrong with its `count` values.
    std::string compare(GraphHook &hook, void *ours, void *theirs, size_t count) {
        void *graph = symbols_.get<void *(*)(void *)>("ggml_new_graph")(context_);
        for (void *one : {ours, theirs}) {
            symbols_.get<void (*)(void *, void *)>("ggml_build_forward_expand")(graph, one);
        }
        GraphHook::callback(ours, true, &hook);
        HookError error = hook.take_error();
        if (error.kind == HookErrorKind::none) {
            const auto compute = symbols_.get<int (*)(void *, void *, int)>("ggml_graph_compute_with_ctx");
            if (compute(context_, graph, 1) != 0) {
                return "ggml does not compute it";
            }
            error = hook.take_error();
        }
        return error.kind == HookErrorKind::none ? difference(ours, theirs, count) : error.text();
    }

private:
    std::string difference(const void *ours, const void *theirs, size_t count) const {
        const auto *a = static_cast<const float *>(abi_.data_of(ours));
        const auto *b = static_cast<const float *>(abi_.data_of(theirs));
        float largest = 0.0F, off = 0.0F;
        for (size_t i = 0; i < count; ++i) {
            largest = std::max(largest, std::fabs(b[i]));
            off = std::isfinite(a[i]) && std::isfinite(b[i]) ? std::max(off, std::fabs(a[i] - b[i])) : INFINITY;
        }
        if (largest > 0.0F && off <= kTolerance * largest) {
            return {};
        }
        char text[64];
        static_cast<void>(std::snprintf(text, sizeof(text), "%.3g off, of %.3g", static_cast<double>(off),
                                        static_cast<double>(largest)));
        return text;
    }

    const Symbols &symbols_;
    const GgmlAbi &abi_;
    std::vector<uint64_t> memory_; // zeros: a result that nobody writes is the same everywhere
    void *context_;
};

bool computes(const std::map<std::string, uintptr_t> &symbols) {
    const auto found = symbols.find("ggml_graph_compute_with_ctx");
    return found != symbols.end() && found->second != 0;
}

// Weights of each layout, and the same as float32.
class Weights {
public:
    explicit Weights(Noise &noise)
        : tiles_((kOut + kTileRows - 1) / kTileRows), lines_(lane_code(kCode)->lines(kIn)),
          codes_(static_cast<size_t>(kExperts * tiles_ * lines_ * kLaneBytes)),
          scales_(static_cast<size_t>(kExperts * kOut)) {
        std::generate(codes_.begin(), codes_.end(), [&] { return static_cast<uint8_t>(noise.bits()); });
        std::generate(scales_.begin(), scales_.end(), [&] { return float_to_half(1.0F + 0.5F * noise.value()); });
        columns_dense_ = noise.values(kOut * kIn);
    }
    CheckedWeight lanes(const char *name, int64_t experts) const {
        WeightArrays arrays{.n_out = kOut, .n_in = kIn, .n_experts = experts};
        arrays.base_kind = static_cast<uint32_t>(BaseKind::lanes);
        arrays.base_scale = 0.01F;
        arrays.lane_code = static_cast<int>(kCode);
        arrays.codes = Array::of(codes_.data(), {experts * tiles_, lines_, kLaneBytes});
        arrays.row_scale = Array::of_half(scales_.data(), {experts * kOut});
        return {name, arrays};
    }
    DenseColumns columns(const char *name) const {
        const auto rows = [this](int64_t begin, int64_t end, float *out) {
            std::copy(columns_dense_.data() + begin * kIn, columns_dense_.data() + end * kIn, out);
        };
        return {name, kOut, kIn, rows};
    }
    const std::vector<float> &columns_dense() const { return columns_dense_; }

private:
    int64_t tiles_, lines_;
    std::vector<uint8_t> codes_;
    std::vector<uint16_t> scales_;
    std::vector<float> columns_dense_;
};

std::vector<float> dense_of(const CheckedWeight &weight) {
    const int64_t rows = weight.ctx().n_experts * kOut;
    std::vector<float> dense(static_cast<size_t>(rows * kIn));
    for (int64_t expert = 0; expert < weight.ctx().n_experts; ++expert) {
        seeddelta_dequantize(weight.ctx().expert(expert), 0, kOut, dense.data() + expert * kOut * kIn);
    }
    return dense;
}

struct Form {
    const char *said, *name; // what it is called in messages, and its weight
    const std::vector<float> &dense;
    int64_t experts;
    size_t results;
    std::function<void *(Graph &, void *weight)> node;
};

} // namespace

const std::vector<std::string> &self_test_symbols() {
    static const std::vector<std::string> names = {"ggml_new_graph", "ggml_build_forward_expand",
                                                   "ggml_graph_compute_with_ctx"};
    return names;
}

int test_products(const std::map<std::string, uintptr_t> &table, const GgmlAbi &abi) {
    if (!computes(table)) {
        return 0;
    }
    const Symbols symbols(table);
    Noise noise;
    const Weights made(noise);
    const CheckedWeight rows = made.lanes("rows", 1), experts = made.lanes("experts", kExperts);
    const DenseColumns columns = made.columns("columns");
    WeightRegistry registry;
    SkipSettings none;
    none.zeros = false;
    add_weights(registry, none, {}, {{"rows", &rows}, {"experts", &experts}, {"columns", &columns.weight()}});

    const std::vector<float> of_rows = dense_of(rows), of_experts = dense_of(experts);
    const std::vector<float> inputs = noise.values(kTokens * kIn);
    const std::vector<int32_t> chosen = {1, 0, 0, 1, 1, 0}, numbers = {3, 0, kOut - 1};
    const auto product = [&](Graph &graph, void *weight) {
        return graph.node("ggml_mul_mat", weight, graph.tensor(kTypeF32, {kIn, kTokens, 1}, inputs));
    };
    const auto look_up = [&](Graph &graph, void *weight) {
        return graph.node("ggml_get_rows", weight, graph.tensor(kTypeI32, {kTokens, 1, 1}, numbers));
    };
    const auto of_experts_product = [&](Graph &graph, void *weight) {
        return graph.node("ggml_mul_mat_id", weight, graph.tensor(kTypeF32, {kIn, 1, kTokens}, inputs),
                          graph.tensor(kTypeI32, {kExperts, kTokens, 1}, chosen));
    };
    const Form forms[] = {
        {"product", "rows", of_rows, 1, kTokens * kOut, product},
        {"product", "columns", made.columns_dense(), 1, kTokens * kOut, product},
        {"experts", "experts", of_experts, kExperts, kExperts * kTokens * kOut, of_experts_product},
        {"look-up", "rows", of_rows, 1, kTokens * kIn, look_up},
    };
    for (const Form &form : forms) {
        GraphHook hook(abi, registry);
        Graph graph(symbols, abi);
        const std::array<int64_t, 3> ne = {kIn, kOut, form.experts};
        void *ours = form.node(graph, graph.placeholder(ne, form.name));
        void *theirs = form.node(graph, graph.tensor(kTypeF32, ne, form.dense));
        if (const std::string wrong = graph.compare(hook, ours, theirs, form.results); !wrong.empty()) {
            fail(std::string("a rewritten node (") + form.said + ", " + form.name +
                 ") is not computed as it should be: " + wrong);
        }
    }
    return static_cast<int>(std::size(forms));
}

int test_attention(const std::map<std::string, uintptr_t> &table, const GgmlAbi &abi, const AttentionAbi &layout) {
    if (!computes(table) || !kernels().attention.fused) { // without it the hook leaves all attention to ggml
        return 0;
    }
    const Symbols symbols(table);
    AttentionSettings settings;
    settings.pack.mode = PackMode::exact;
    AttentionHook attention(abi, layout, settings);
    WeightRegistry registry;
    GraphHook hook(abi, registry);
    hook.set_attention(&attention);
    Graph graph(symbols, abi);
    Noise noise;
    std::vector<float> mask(kMaskRows * kPositions);
    for (size_t i = 0; i < mask.size(); ++i) {
        mask[i] = i % kPositions < kVisible ? 0.0F : -INFINITY;
    }
    void *q = graph.tensor(kTypeF32, {kDim, 1, kHeads}, noise.values(kDim * kHeads));
    void *k = graph.tensor(kTypeF16, {kDim, kPositions, kHeads}, halves(noise.values(kDim * kPositions * kHeads)));
    void *v = graph.tensor(kTypeF16, {kDim, kPositions, kHeads}, halves(noise.values(kDim * kPositions * kHeads)));
    void *hidden = graph.tensor(kTypeF16, {kPositions, kMaskRows, 1}, halves(mask));
    const auto node = [&] {
        return graph.node("ggml_flash_attn_ext", q, k, v, hidden, 1.0F / std::sqrt(static_cast<float>(kDim)), 0.0F,
                          0.0F);
    };
    void *ours = node();
    void *theirs = node();
    std::string wrong = graph.compare(hook, ours, theirs, kDim * kHeads);
    if (wrong.empty() && attention.counters()[AttentionCount::exact] == 0) {
        const char *why = attention.left_because();
        wrong = std::string("it is left to ggml (") + (why == nullptr ? "it was not seen" : why) + ")";
    }
    if (!wrong.empty()) {
        fail("attention is not computed as it should be: " + wrong);
    }
    return 1;
}

} // namespace seeddelta
