#include "ggml_host/graph_hook.hpp"

#include <cstring>

#include "format/counter.hpp"
#include "simd/kernel_table.hpp"

namespace seeddelta {

GraphHook::GraphHook(const GgmlAbi &abi, WeightRegistry &registry) : abi_(abi), registry_(registry) {
    // The instruction set is chosen here: it allocates the first time, and a thread that computes may not.
    static_cast<void>(kernels());
    std::unordered_map<const GateSpec *, Gate *> gate_of;
    for (const GateSpec &spec : registry.gates()) {
        gate_of.emplace(&spec, &gates_.emplace_back(spec));
    }
    for (RegisteredWeight &weight : registry.weights()) {
        ServedWeight &served = served_.emplace_back();
        served.weight = &weight;
        if (const GateSpec *gate = weight.op->gate(); gate != nullptr) {
            served.state.gate = gate_of.at(gate);
            const bool compared = gate->event.enabled || gate->kwta.gap_every > 0;
            served.state.outputs.resize(compared ? static_cast<size_t>(weight.op->shape().n_out) : 0);
        }
        for (const WeightUse use : {WeightUse::product, WeightUse::experts, WeightUse::lookup}) {
            served.node(use, false) = {this, &served, use, false};
            served.node(use, true) = {this, &served, use, true};
        }
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
        const Counters<GateCount> &c = gate.counters();
        sum.kwta += c[GateCount::kwta_calls];
        (gate.spec().pack.zeros ? sum.zeros : sum.pack) += c[GateCount::pack_tokens];
        sum.events += c[GateCount::event_calls] - c[GateCount::event_full];
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

void GraphHook::run(void *dst, int ith, int nth, const ServedWeight::Node &node) {
    if (given_up_.load(std::memory_order_relaxed)) { // there may be no room
        return;
    }
    // Both are constant while the threads run: the last one to leave changes them.
    const bool dense = node.served->dense;
    const bool reuse = node.reuse && prepared_x_ == abi_.src_of(dst, 1);
    const int workers = arenas_.workers(nth);
    if (ith < workers) {
        const Arenas::Loan loan(arenas_, ith);
        const RegisteredWeight &weight = *node.served->weight;
        const Work work = work_of(dst, node.use, reuse);
        (dense ? weight.dense : weight.op)->run(work, node.served->state, workspace_, ith, workers, status_);
        if (!dense && node.use == WeightUse::product && work.n_tokens == 1) { // a prompt is not waiting for the memory
            prefetch_next(*node.served, ith, workers);
        }
    }
    // The last thread to leave sees what all others wrote and settles the node; nobody waits, ggml has its own barrier.
    if (finished_threads_.fetch_add(1, std::memory_order_acq_rel) + 1 == nth) {
        finished_threads_.store(0, std::memory_order_relaxed);
        const Arenas::Loan loan(arenas_, 0);
        finish(dst, node, dense, reuse && !dense);
    }
}

// The memory works while ggml does what lies between two products.
void GraphHook::prefetch_next(const ServedWeight &served, int ith, int nth) const {
    if (served.next != nullptr && !served.next->dense && served.next->weight->op->prefetch(ith, nth) && ith == 0) {
        count(served.next->counters[WeightCount::prefetched]);
    }
}

void GraphHook::count_product(const void *dst, const ServedWeight::Node &node, bool dense, bool reused) {
    Counters<WeightCount> &counters = node.served->counters;
    count(counters[WeightCount::calls]);
    count(counters[WeightCount::tokens], tokens_of(dst));
    if (!dense) {
        const Tally tally = node.served->weight->op->tally(work_of(dst, node.use, reused), workspace_);
        count(counters[WeightCount::own_calls]);
        count(counters[WeightCount::reused], reused ? 1 : 0);
        count(counters[WeightCount::experts], tally.experts);
        count(counters[WeightCount::active_inputs], tally.active);
        count(counters[WeightCount::skipped_inputs], tally.skipped);
        count(counters[WeightCount::blocks], tally.blocks);
    }
    if (node.served->state.gate != nullptr) {
        node.served->state.gate->publish();
    }
    prepared_x_ = dense ? nullptr : abi_.src_of(dst, 1);
    count(products_);
}

// The result again, from the original model, from which this weight is computed from now on. By the calling thread.
bool GraphHook::recover(const void *dst, const ServedWeight::Node &node) {
    RegisteredWeight &weight = *node.served->weight;
    if (weight.dense == nullptr) {
        return false;
    }
    ComputeStatus status;
    weight.dense->run(work_of(dst, node.use, false), node.served->state, workspace_, 0, 1, status);
    count(node.served->counters[WeightCount::dense_calls]);
    if (status.nonfinite_output.load(std::memory_order_relaxed)) {
        return false;
    }
    node.served->dense = true;
    weight.use_dense.store(true, std::memory_order_relaxed);
    return true;
}

void GraphHook::finish(void *dst, const ServedWeight::Node &node, bool dense, bool reused) {
    Counters<WeightCount> &counters = node.served->counters;
    if (node.use == WeightUse::lookup) {
        count(counters[WeightCount::rows], abi_.ne_of(dst, 1));
    } else {
        count_product(dst, node, dense, reused);
    }
    count(counters[WeightCount::dense_calls], dense ? 1 : 0);

    if (status_.bad_index.exchange(false, std::memory_order_relaxed)) {
        record(HookErrorKind::bad_index, node.served, nullptr);
    }
    const bool bad_input = status_.nonfinite_input.exchange(false, std::memory_order_relaxed);
    const bool bad_output = status_.nonfinite_output.exchange(false, std::memory_order_relaxed);
    if (!bad_input && !bad_output) {
        return;
    }
    count(counters[WeightCount::nonfinite_events], dense ? 0 : 1);
    const bool has_dense = node.served->weight->dense != nullptr;
    if (!dense && recover(dst, node)) {
        return;
    }
    // Zeros keep the NaN from spreading to every other weight; the error is raised after the decode call.
    auto *y = static_cast<uint8_t *>(abi_.data_of(dst));
    for (int64_t token = 0; token < tokens_of(dst); ++token) {
        std::memset(y + token * abi_.nb_of(dst, 1), 0, static_cast<size_t>(abi_.ne_of(dst, 0)) * sizeof(float));
    }
    record(has_dense ? HookErrorKind::dense_not_finite : HookErrorKind::not_finite, node.served,
           bad_input ? "activations" : "result");
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
