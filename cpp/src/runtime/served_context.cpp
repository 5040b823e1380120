#include "runtime/served_context.hpp"

#include <chrono>

#include "ggml_host/proven_gates.hpp"
#include "runtime/say.hpp"

namespace seeddelta {

ServedContext::ServedContext(std::shared_ptr<ServedModel> model, const Options &options, Totals &totals)
    : model_(std::move(model)), options_(options), totals_(totals),
      hook_(LlamaLibrary::loaded().abi(), model_ == nullptr ? none_ : model_->registry()) {
    if (options.attention != AttentionMode::llama) {
        attention_.emplace(LlamaLibrary::loaded().ggml(), options);
        hook_.set_attention(&attention_->hook());
    }
    std::vector<ProvenGate> gates = proven_gates(hook_);
    if (!gates.empty() && !options.skipping.force && !options.skipping.skip_prompt) {
        proof_.emplace(std::move(gates));
    }
}

ServedContext::~ServedContext() {
    add_to(totals_);
}

void ServedContext::add_to(Totals &totals) const {
    totals.add(hook_);
    // A process may end in a handler of signals, where nothing can be waited for.
    if (const std::unique_lock lock(proof_mutex_, std::try_to_lock); lock && proof_) {
        totals.proof = proof_->metrics();
    }
}

int ServedContext::compute(void *scheduler, void *graph, ComputeGraph real) {
    const LlamaLibrary &library = LlamaLibrary::loaded();
    const int nodes = library.graph_size(graph);
    hook_.take_tokens();
    for (int i = 0; i < nodes; ++i) {
        if (GraphHook::callback(library.graph_node(graph, i), true, &hook_)) {
            break;
        }
    }
    if (const HookError error = hook_.take_error(); error.kind != HookErrorKind::none) {
        return told(verdict(error));
    }
    const int status = proof_ && hook_.take_tokens() == 1 ? timed(scheduler, graph, real) : real(scheduler, graph);
    const Verdict found = settle(status == 0);
    return found.why.empty() ? status : told(found);
}

ServedContext::Verdict ServedContext::settle(bool whole) {
    const HookError error = hook_.take_error();
    if (std::string changed = model_ == nullptr ? "" : model_->changed(); !changed.empty()) {
        return {kStatusFailed, std::move(changed)};
    }
    if (error.kind != HookErrorKind::none) {
        return verdict(error);
    }
    bool settings = false;
    if (const std::string wrong = attention_ ? attention_->wrong(settings) : std::string(); !wrong.empty()) {
        return {kStatusFailed, where() + ": " + wrong};
    }
    if (whole && !proven_ && !prove()) {
        return {kStatusFailed, where() + ": this llama.cpp did not run the operations that were put into its graph"};
    }
    return {};
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
        say({where(), ": ", line});
    }
    return status;
}

// That llama.cpp runs the operations that are put into its graphs.
bool ServedContext::prove() {
    uint64_t rewrites = 0, computed = 0;
    for (const ServedWeight &served : hook_.served()) {
        rewrites += served.counters[WeightCount::rewrites];
        computed += served.counters[WeightCount::calls] + served.counters[WeightCount::rows];
    }
    proven_ = computed > 0;
    return proven_ || rewrites == 0;
}

ServedContext::Verdict ServedContext::verdict(const HookError &error) const {
    return {error.kind == HookErrorKind::no_memory ? kStatusNoMemory : kStatusFailed, where() + ": " + error.text()};
}

int ServedContext::told(const Verdict &verdict) {
    say({"error: ", verdict.why});
    return verdict.status;
}

} // namespace seeddelta
