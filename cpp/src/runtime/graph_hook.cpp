#include "runtime/graph_hook.hpp"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <vector>

namespace seeddelta {

namespace {

void count(std::atomic<uint64_t> &counter, uint64_t n = 1) {
    counter.fetch_add(n, std::memory_order_relaxed);
}

// True when both products rotate and quantise x alike.
bool same_activations(const seeddelta_ctx &a, const seeddelta_ctx &b) {
    return a.n_in == b.n_in && a.rotation_block == b.rotation_block &&
           (a.rotation_block <= 1 || a.base_seed == b.base_seed);
}

// Eight partial sums, so that the compiler can use vectors without reordering a sum.
float dot(const float *a, const float *b, int64_t n) {
    float partial[8] = {};
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        for (int64_t j = 0; j < 8; ++j) {
            partial[j] += a[i + j] * b[i + j];
        }
    }
    for (; i < n; ++i) {
        partial[0] += a[i] * b[i];
    }
    return ((partial[0] + partial[4]) + (partial[1] + partial[5])) +
           ((partial[2] + partial[6]) + (partial[3] + partial[7]));
}

} // namespace

GraphHook::GraphHook(const GgmlAbi &abi, WeightRegistry &registry) : abi_(abi), registry_(registry) {
    for (RegisteredWeight &weight : registry.weights()) {
        ServedWeight &served = served_.emplace_back();
        served.weight = &weight;
        served.fresh = {this, &served, false};
        served.reuse = {this, &served, true};
        served_of_.emplace(&weight, &served);
    }
}

bool GraphHook::callback(void *tensor, bool ask, void *user_data) noexcept {
    if (!ask) {
        return true;
    }
    auto *hook = static_cast<GraphHook *>(user_data);
    try {
        hook->visit(tensor);
    } catch (...) { // only allocations can throw
        hook->record(HookErrorKind::no_memory, nullptr, "out of memory while a graph was prepared");
    }
    return false;
}

void GraphHook::compute(void *dst, int ith, int nth, void *userdata) noexcept {
    const auto *node = static_cast<const ServedWeight::Node *>(userdata);
    node->hook->run(dst, ith, nth, *node);
}

// All nodes of a split are visited in order before any of them is computed.
void GraphHook::visit(void *node) {
    count(nodes_seen_);
    // Activations are shared between neighbours of one walk only: not when a product ran since (a new walk), and not
    // when x itself is computed again or overwritten.
    const uint64_t products = products_.load(std::memory_order_relaxed);
    if (products != products_at_visit_ || node == previous_.x || abi_.data_of(node) == previous_.data) {
        products_at_visit_ = products;
        previous_ = {};
    }
    const int32_t op = abi_.op_of(node);
    const bool product = op == abi_.op_mul_mat;
    const bool ours = op == abi_.op_custom && // a graph that is used again
                      std::memcmp(static_cast<const uint8_t *>(node) + abi_.params, abi_.params_custom.data(),
                                  abi_.params_userdata) == 0;
    bool elsewhere = false;
    ServedWeight *served = product || ours ? find(abi_.src_of(node, 0), elsewhere) : nullptr;
    if (served == nullptr || elsewhere) {
        check_use(node);
        return;
    }
    const seeddelta_ctx &ctx = *served->weight->ctx;
    if (!fits(node, ctx)) {
        record(HookErrorKind::layout, served, "is multiplied with activations of an unexpected type or layout");
        return;
    }
    const void *x = abi_.src_of(node, 1);
    const void *data = abi_.data_of(x);
    const bool reuse =
        previous_.ctx != nullptr && previous_.x == x && previous_.data == data && same_activations(*previous_.ctx, ctx);
    served->dense = served->weight->use_dense.load(std::memory_order_relaxed);
    workspace_.reserve(tokens_of(x), ctx.n_in);
    abi_.make_custom(node, reuse ? &served->reuse : &served->fresh);
    previous_ = {x, data, &ctx};
    count(served->counters.rewrites);
}

// The weight behind a tensor, by pointer, the first time by name. `elsewhere` is set for a copy that the scheduler made
// for another device ("CUDA0#blk.0.ffn_up.weight#0").
ServedWeight *GraphHook::find(const void *tensor, bool &elsewhere) {
    if (tensor == nullptr || abi_.op_of(tensor) != abi_.op_none) {
        return nullptr;
    }
    const char *text = abi_.name_of(tensor);
    const std::string_view name(text, strnlen(text, kMaxName));
    const auto known = by_pointer_.find(tensor);
    if (known != by_pointer_.end() && (known->second == nullptr || known->second->weight->name == name)) {
        return known->second;
    }
    RegisteredWeight *weight = registry_.find(name);
    if (weight == nullptr && name.find('#') != std::string_view::npos) {
        const size_t begin = name.find('#') + 1;
        weight = registry_.find(name.substr(begin, name.rfind('#') - begin));
        if (weight != nullptr) {
            elsewhere = true;
            return served_of_.at(weight);
        }
    }
    ServedWeight *served = weight == nullptr ? nullptr : served_of_.at(weight);
    by_pointer_[tensor] = served;
    return served;
}

// A registered weight has no dense data: any other use of it would read zeros.
void GraphHook::check_use(const void *node) {
    for (int i = 0; i < 2; ++i) {
        bool elsewhere = false;
        const ServedWeight *served = find(abi_.src_of(node, i), elsewhere);
        if (served != nullptr) {
            const char *op = abi_.op_name(abi_.op_of(node));
            record(HookErrorKind::not_served, served, elsewhere ? "a copy on another device" : op);
        }
    }
}

bool GraphHook::fits(const void *node, const seeddelta_ctx &ctx) const {
    const void *x = abi_.src_of(node, 1);
    const auto uniform = [&](const void *t) { // one stride leads from each token to the next
        return abi_.nb_of(t, 0) == 4 && abi_.nb_of(t, 1) % 4 == 0 &&
               (abi_.ne_of(t, 2) == 1 || abi_.nb_of(t, 2) == abi_.nb_of(t, 1) * abi_.ne_of(t, 1)) &&
               (abi_.ne_of(t, 3) == 1 || abi_.nb_of(t, 3) == abi_.nb_of(t, 2) * abi_.ne_of(t, 2));
    };
    const void *w = abi_.src_of(node, 0);
    return x != nullptr && abi_.type_of(x) == kTypeF32 && abi_.type_of(node) == kTypeF32 && uniform(x) &&
           uniform(node) && abi_.ne_of(w, 0) == ctx.n_in && abi_.ne_of(w, 1) == ctx.n_out && abi_.ne_of(w, 2) == 1 &&
           abi_.ne_of(w, 3) == 1 && abi_.ne_of(x, 0) == ctx.n_in && abi_.ne_of(node, 0) == ctx.n_out &&
           tokens_of(x) == tokens_of(node);
}

void GraphHook::run(void *dst, int ith, int nth, const ServedWeight::Node &node) {
    const RegisteredWeight &weight = *node.served->weight;
    const seeddelta_ctx &ctx = *weight.ctx;
    const void *x = abi_.src_of(dst, 1);
    // Both are constant while the threads run: the last one to leave changes them.
    const bool dense = node.served->dense;
    const bool reuse = node.reuse && prepared_x_ == x;
    if (dense) {
        bool finite = true;
        multiply_dense(weight, dst, x, ctx.n_out * ith / nth, ctx.n_out * (ith + 1) / nth, finite);
        if (!finite) {
            dense_finite_.store(false, std::memory_order_relaxed);
        }
    } else {
        seeddelta_compute_threaded(ctx, static_cast<const float *>(abi_.data_of(x)), tokens_of(x), abi_.nb_of(x, 1),
                                   static_cast<float *>(abi_.data_of(dst)), abi_.nb_of(dst, 1), workspace_, ith, nth,
                                   reuse, status_);
    }
    // The last thread to leave sees what all others wrote and settles the product; nobody waits, ggml has its own
    // barrier.
    if (finished_threads_.fetch_add(1, std::memory_order_acq_rel) + 1 == nth) {
        finished_threads_.store(0, std::memory_order_relaxed);
        finish(dst, x, node, reuse && !dense, dense);
    }
}

void GraphHook::finish(void *dst, const void *x, const ServedWeight::Node &node, bool reused, bool dense) {
    RegisteredWeight &weight = *node.served->weight;
    WeightCounters &counters = node.served->counters;
    count(counters.calls);
    count(counters.tokens, static_cast<uint64_t>(tokens_of(x)));
    count(counters.reused, reused ? 1 : 0);
    count(counters.dense_calls, dense ? 1 : 0);
    prepared_x_ = dense ? nullptr : x;
    count(products_);

    bool failed = dense && !dense_finite_.exchange(true, std::memory_order_relaxed);
    HookErrorKind kind = HookErrorKind::dense_not_finite;
    const bool bad_input = status_.nonfinite_input.exchange(false, std::memory_order_relaxed);
    const bool bad_output = status_.nonfinite_output.exchange(false, std::memory_order_relaxed);
    if (bad_input || bad_output) {
        count(counters.nonfinite_events);
        bool finite = true;
        if (weight.dense.data != nullptr) {
            multiply_dense(weight, dst, x, 0, weight.ctx->n_out, finite);
            count(counters.dense_calls);
        } else {
            finite = false;
            kind = HookErrorKind::not_finite;
        }
        failed = !finite;
        if (finite) {
            node.served->dense = true;
            weight.use_dense.store(true, std::memory_order_relaxed);
        }
    }
    if (failed) {
        // Zeros keep the NaN from spreading to every other weight; the error is raised after the decode call.
        auto *y = static_cast<uint8_t *>(abi_.data_of(dst));
        for (int64_t token = 0; token < tokens_of(x); ++token) {
            std::memset(y + token * abi_.nb_of(dst, 1), 0, static_cast<size_t>(weight.ctx->n_out) * sizeof(float));
        }
        record(kind, node.served, bad_input ? "activations" : "result");
    }
}

// Plain code for a rare case: a row is widened once and multiplied with every token.
void GraphHook::multiply_dense(const RegisteredWeight &weight, const void *dst, const void *x, int64_t row_begin,
                               int64_t row_end, bool &finite) const {
    const int64_t n_in = weight.ctx->n_in;
    const auto *x_data = static_cast<const uint8_t *>(abi_.data_of(x));
    auto *y_data = static_cast<uint8_t *>(abi_.data_of(dst));
    const ToFloatFunction to_float = weight.dense.type == kTypeF32 ? nullptr : abi_.to_float_of(weight.dense.type);
    thread_local std::vector<float> widened;
    widened.resize(static_cast<size_t>(n_in));
    for (int64_t row = row_begin; row < row_end; ++row) {
        const uint8_t *source = weight.dense.data + row * weight.dense.row_bytes;
        const float *values = reinterpret_cast<const float *>(source);
        if (to_float != nullptr) {
            to_float(source, widened.data(), n_in);
            values = widened.data();
        }
        for (int64_t token = 0; token < tokens_of(x); ++token) {
            const auto *column = reinterpret_cast<const float *>(x_data + token * abi_.nb_of(x, 1));
            const float y = dot(values, column, n_in);
            finite = finite && std::isfinite(y);
            reinterpret_cast<float *>(y_data + token * abi_.nb_of(dst, 1))[row] = y;
        }
    }
}

void GraphHook::record(HookErrorKind kind, const ServedWeight *served, const char *detail) noexcept {
    int none = 0;
    if (error_kind_.compare_exchange_strong(none, -1)) { // -1: being written
        error_weight_.store(served);
        error_detail_.store(detail);
        error_kind_.store(static_cast<int>(kind));
    }
}

HookError GraphHook::take_error() {
    const int kind = error_kind_.load();
    if (kind <= 0) {
        return {};
    }
    const ServedWeight *served = error_weight_.load();
    const char *detail = error_detail_.load();
    HookError error{static_cast<HookErrorKind>(kind), served == nullptr ? "" : served->weight->name,
                    detail == nullptr ? "" : detail};
    error_kind_.store(0);
    return error;
}

} // namespace seeddelta
