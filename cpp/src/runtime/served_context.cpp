#include "runtime/served_context.hpp"

#include <chrono>

#include "ggml_host/proven_gates.hpp"
#include "runtime/say.hpp"

namespace seeddelta {

ServedContext::ServedContext(std::shared_ptr<ServedModel> model)
    : model_(std::move(model)), hook_(LlamaLibrary::loaded().abi(), model_->registry()) {
    if (model_->options().attention != AttentionMode::llama) {
        attention_.emplace(LlamaLibrary::loaded(), model_->options().attention);
        hook_.set_attention(&attention_->hook());
    }
    const SkipSettings &skipping = model_->options().skipping;
    std::vector<ProvenGate> gates = proven_gates(hook_);
    if (!gates.empty() && !skipping.force && !skipping.skip_prompt) {
        proof_.emplace(std::move(gates));
    }
}

ServedContext::~ServedContext() {
    add_to(model_->totals);
}

void ServedContext::add_to(Totals &totals) const {
    totals.add(hook_);
    // A process may end in a handler of signals, where nothing can be waited for.
    if (const std::unique_lock lock(proof_mutex_, std::try_to_lock); lock && proof_) {
        totals.proof = proof_->metrics();
    }
    if (attention_) {
        attention_->add_to(totals.attention);
    }
}

int ServedContext::compute(void *scheduler, void *graph, ComputeGraph real) {
    const LlamaLibrary &library = LlamaLibrary::loaded();
    const int nodes = library.graph_size(graph);
    hook_.take_gated_tokens();
    for (int i = 0; i < nodes; ++i) {
        if (GraphHook::callback(library.graph_node(graph, i), true, &hook_)) {
            break;
        }
    }
    if (const HookError error = hook_.take_error(); error.kind != HookErrorKind::none) {
        return report(error);
    }
    const int status =
        proof_ && hook_.take_gated_tokens() == 1 ? timed(scheduler, graph, real) : real(scheduler, graph);
    const HookError error = hook_.take_error();
    if (const std::string changed = model_->changed(); !changed.empty()) {
        say({"error: ", changed});
        return kStatusFailed;
    }
    if (error.kind != HookErrorKind::none) {
        return report(error);
    }
    if (const std::string wrong = attention_ ? attention_->wrong() : std::string(); !wrong.empty()) {
        say({"error: ", model_->path(), ": ", wrong});
        return kStatusFailed;
    }
    return status != 0 || proven_ ? status : prove();
}

// A single token, with its gates or without the one that is on trial.
int ServedContext::timed(void *scheduler, void *graph, ComputeGraph real) {
    using Clock = std::chrono::steady_clock;
    {
        const std::scoped_lock lock(proof_mutex_);
        proof_->begin();
    }
    const Clock::time_point begin = Clock::now();
    const int status = real(scheduler, graph);
    const std::chrono::duration<double> spent = Clock::now() - begin;
    const std::scoped_lock lock(proof_mutex_);
    if (status != 0) {
        proof_->cancel();
        return status;
    }
    for (const std::string &line : proof_->end(spent.count())) {
        say({model_->path(), ": ", line});
    }
    return status;
}

// That llama.cpp runs the operations that are put into its graphs.
int ServedContext::prove() {
    uint64_t rewrites = 0, computed = 0;
    for (const ServedWeight &served : hook_.served()) {
        rewrites += served.counters.rewrites.load();
        computed += served.counters.calls.load() + served.counters.rows.load();
    }
    proven_ = computed > 0;
    if (rewrites == 0 || proven_) {
        return 0;
    }
    say({"error: ", model_->path(), ": this llama.cpp did not run the operations that were put into its graph"});
    return kStatusFailed;
}

int ServedContext::report(const HookError &error) const {
    say({"error: ", model_->path(), ": ", error.text()});
    return error.kind == HookErrorKind::no_memory ? kStatusNoMemory : kStatusFailed;
}

} // namespace seeddelta
