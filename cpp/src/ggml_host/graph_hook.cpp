#include "ggml_host/graph_hook.hpp"

#include <cstring>

#include "format/counter.hpp"

namespace seeddelta {

namespace {

void count_kind(KindCounters &kinds, const RegisteredWeight &weight) {
    if (weight.columns != nullptr) {
        switch (weight.columns->kind) {
        case ColumnKind::f16:
            count(kinds.columns_f16);
            break;
        case ColumnKind::i8:
            count(kinds.columns_i8);
            break;
        case ColumnKind::trellis:
            count(kinds.columns_trellis);
            break;
        }
        return;
    }
    const seeddelta_ctx &ctx = *weight.ctx;
    if (ctx.base == BaseKind::none && ctx.scheme == ResidualScheme::codebook_resid) {
        count(kinds.statecells);
        return;
    }
    switch (ctx.base) {
    case BaseKind::prng_block:
        count(kinds.prng_block);
        count(kinds.seed_choice, ctx.seed_index != nullptr ? 1 : 0);
        break;
    case BaseKind::fht_struct:
        count(kinds.fht_struct);
        break;
    case BaseKind::trellis:
        count(kinds.trellis);
        break;
    case BaseKind::lanes:
        count(kinds.lanes);
        break;
    case BaseKind::none:
        break;
    }
    switch (ctx.scheme) {
    case ResidualScheme::coo:
        count(kinds.coo);
        break;
    case ResidualScheme::block:
        count(kinds.block);
        break;
    case ResidualScheme::codebook_resid:
        count(kinds.codebook_resid);
        break;
    case ResidualScheme::proc_sparse:
        count(kinds.proc_sparse);
        break;
    case ResidualScheme::none:
        break;
    }
}

} // namespace

GraphHook::GraphHook(const GgmlAbi &abi, WeightRegistry &registry) : abi_(abi), registry_(registry) {
    std::unordered_map<const GateSpec *, Gate *> gate_of;
    for (const GateSpec &spec : registry.gates()) {
        gate_of.emplace(&spec, &gates_.emplace_back(spec));
    }
    for (RegisteredWeight &weight : registry.weights()) {
        ServedWeight &served = served_.emplace_back();
        served.weight = &weight;
        served.gate = weight.gate == nullptr ? nullptr : gate_of.at(weight.gate);
        served.state.resize(
            weight.gate != nullptr && weight.gate->event.enabled ? static_cast<size_t>(weight.columns->n_out) : 0);
        served.fresh = {this, &served, WeightUse::product, false};
        served.reuse = {this, &served, WeightUse::product, true};
        served.experts = {this, &served, WeightUse::experts, false};
        served.experts_reuse = {this, &served, WeightUse::experts, true};
        served.lookup = {this, &served, WeightUse::lookup, false};
        served_of_.emplace(&weight, &served);
    }
}

void GraphHook::pause(unsigned features) {
    for (Gate &gate : gates_) {
        gate.pause(features);
    }
}

GraphHook::GateActivity GraphHook::activity() const {
    GateActivity sum;
    for (const Gate &gate : gates_) {
        const GateCounters &c = gate.counters();
        sum.kwta += c.kwta_calls.load(std::memory_order_relaxed);
        (gate.spec().pack.zeros ? sum.zeros : sum.pack) += c.pack_tokens.load(std::memory_order_relaxed);
        sum.events += c.event_calls.load(std::memory_order_relaxed) - c.event_full.load(std::memory_order_relaxed);
        sum.given_up += gate.published().given_up.load(std::memory_order_relaxed) ? 1 : 0;
    }
    return sum;
}

bool GraphHook::callback(void *tensor, bool ask, void *user_data) noexcept {
    auto *hook = static_cast<GraphHook *>(user_data);
    if (!ask) {
        return !hook->given_up_.load(std::memory_order_relaxed);
    }
    if (!hook->given_up_.load(std::memory_order_relaxed)) {
        try {
            hook->visit(tensor);
        } catch (...) { // only allocations can throw
            hook->give_up();
        }
    }
    return hook->given_up_.load(std::memory_order_relaxed);
}

// Of what the graph was to change nothing is known.
void GraphHook::give_up() noexcept {
    record(HookErrorKind::no_memory, nullptr,
           "no memory for the next computation, which was not done; free some, or use a shorter context or batch");
    given_up_.store(true, std::memory_order_relaxed);
    previous_ = {};
    for (Gate &gate : gates_) {
        if (gate.events()) {
            gate.event().forget();
        }
    }
    if (attention_ != nullptr) {
        attention_->invalidate();
    }
}

void GraphHook::compute(void *dst, int ith, int nth, void *userdata) noexcept {
    const auto *node = static_cast<const ServedWeight::Node *>(userdata);
    node->hook->run(dst, ith, nth, *node);
}

void GraphHook::run_share(void *dst, int ith, int nth, const ServedWeight::Node &node, bool dense, bool reuse) {
    const Arenas::Loan loan(arenas_, ith);
    if (node.use == WeightUse::lookup) {
        run_lookup(dst, ith, nth, *node.served->weight, dense);
    } else if (node.use == WeightUse::experts) {
        run_experts(dst, ith, nth, node, dense, reuse);
    } else {
        run_product(dst, ith, nth, node, dense, reuse);
    }
}

void GraphHook::run(void *dst, int ith, int nth, const ServedWeight::Node &node) {
    if (given_up_.load(std::memory_order_relaxed)) { // there may be no room
        return;
    }
    // Both are constant while the threads run: the last one to leave changes them.
    const bool dense = node.served->dense;
    const bool reuse = node.reuse && prepared_x_ == abi_.src_of(dst, 1);
    const int workers = arenas_.workers(nth);
    if (ith < workers) {
        run_share(dst, ith, workers, node, dense, reuse);
    }
    // The last thread to leave sees what all others wrote and settles the node; nobody waits, ggml has its own barrier.
    if (finished_threads_.fetch_add(1, std::memory_order_acq_rel) + 1 == nth) {
        finished_threads_.store(0, std::memory_order_relaxed);
        const Arenas::Loan loan(arenas_, 0);
        finish(dst, node, dense, reuse && !dense);
    }
}

void GraphHook::run_product(void *dst, int ith, int nth, const ServedWeight::Node &node, bool dense, bool reuse) {
    const RegisteredWeight &weight = *node.served->weight;
    const seeddelta_ctx &ctx = *weight.ctx;
    const void *x = abi_.src_of(dst, 1);
    if (!dense && weight.columns != nullptr) {
        const ColumnCounts counts = columns_compute_threaded(
            *weight.columns, node.served->gate, static_cast<const float *>(abi_.data_of(x)), tokens_of(x),
            abi_.nb_of(x, 1), static_cast<float *>(abi_.data_of(dst)), abi_.nb_of(dst, 1), workspace_, ith, nth, reuse,
            status_, node.served->state.data());
        active_units_.store(counts.active, std::memory_order_relaxed);
        return;
    }
    if (!dense) {
        seeddelta_compute_threaded(ctx, static_cast<const float *>(abi_.data_of(x)), tokens_of(x), abi_.nb_of(x, 1),
                                   static_cast<float *>(abi_.data_of(dst)), abi_.nb_of(dst, 1), workspace_, ith, nth,
                                   reuse, status_);
        if (tokens_of(x) == 1) { // a prompt is not waiting for the memory
            prefetch_next(*node.served, ith, nth);
        }
        return;
    }
    bool finite = true;
    multiply_dense(weight, dst, ctx.n_out * ith / nth, ctx.n_out * (ith + 1) / nth, finite);
    if (!finite) {
        dense_finite_.store(false, std::memory_order_relaxed);
    }
}

// The memory works while ggml does what lies between two products.
void GraphHook::prefetch_next(const ServedWeight &served, int ith, int nth) const {
    if (served.next != nullptr && !served.next->dense && seeddelta_prefetch(*served.next->weight->ctx, ith, nth) &&
        ith == 0) {
        count(served.next->counters.prefetched);
    }
}

void GraphHook::finish(void *dst, const ServedWeight::Node &node, bool dense, bool reused) {
    RegisteredWeight &weight = *node.served->weight;
    WeightCounters &counters = node.served->counters;
    const void *x = abi_.src_of(dst, 1);
    if (node.use == WeightUse::lookup) {
        count(counters.rows, static_cast<uint64_t>(abi_.ne_of(dst, 1)));
    } else {
        count(counters.calls);
        const int64_t experts = node.use == WeightUse::experts && !dense ? workspace_.experts() : 0;
        count(counters.tokens, static_cast<uint64_t>(tokens_of(dst)));
        count(counters.experts, static_cast<uint64_t>(experts));
        count(counters.reused, reused ? 1 : 0);
        if (weight.columns != nullptr && !dense) {
            const int64_t active = active_units_.load(std::memory_order_relaxed);
            count(counters.active_units, static_cast<uint64_t>(active));
            count(counters.skipped_units, static_cast<uint64_t>(tokens_of(dst) * weight.ctx->n_in - active));
        }
        if (node.served->gate != nullptr) {
            node.served->gate->publish();
        }
        prepared_x_ = dense ? nullptr : x;
        count(products_);
        if (!dense) {
            count_kind(kinds_, weight);
        }
    }
    count(counters.dense_calls, dense ? 1 : 0);

    if (status_.bad_index.exchange(false, std::memory_order_relaxed)) {
        record(HookErrorKind::bad_index, node.served, nullptr);
    }
    bool failed = dense && !dense_finite_.exchange(true, std::memory_order_relaxed);
    HookErrorKind kind = HookErrorKind::dense_not_finite;
    const bool bad_input = status_.nonfinite_input.exchange(false, std::memory_order_relaxed);
    const bool bad_output = status_.nonfinite_output.exchange(false, std::memory_order_relaxed);
    if (bad_input || bad_output) {
        count(counters.nonfinite_events);
        bool finite = true;
        if (weight.dense.data != nullptr) {
            compute_dense(dst, weight, node.use, finite);
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
        for (int64_t token = 0; token < tokens_of(dst); ++token) {
            std::memset(y + token * abi_.nb_of(dst, 1), 0, static_cast<size_t>(abi_.ne_of(dst, 0)) * sizeof(float));
        }
        record(kind, node.served, bad_input ? "activations" : "result");
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
    given_up_.store(false);
    error_kind_.store(0);
    return error;
}

} // namespace seeddelta
