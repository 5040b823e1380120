#include "ggml_host/attention_hook.hpp"

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "format/counter.hpp"
#include "ggml_host/node_form.hpp"

namespace seeddelta {

static constexpr std::string_view kCacheName = "cache_k_l"; // llama.cpp's name of a layer's keys

AttentionHook::AttentionHook(const GgmlAbi &abi, const AttentionAbi &attention, AttentionSettings settings)
    : abi_(abi), attention_(attention), settings_(std::move(settings)), chain_(abi, attention) {
    static_cast<void>(kernels()); // as GraphHook does
}

bool AttentionHook::visit(void *node) {
    if (invalid_.exchange(false, std::memory_order_acq_rel)) {
        for (auto &[place, layer] : layers_) {
            if (layer.selector != nullptr) {
                layer.selector->forget();
            }
        }
    }
    if (abi_.is_custom(node, &AttentionHook::compute)) { // a graph that is used again
        plan(node, *static_cast<Node *>(const_cast<void *>(abi_.custom_userdata(node))));
        return true;
    }
    if (abi_.is_custom(node, &AttentionHook::deliver)) {
        return true;
    }
    if (abi_.op_of(node) == attention_.op_flash_attn_ext) {
        return take_flash(node);
    }
    watch(node);
    switch (chain_.see(node)) {
    case AttentionChain::Found::whole:
        return take_chain(node);
    case AttentionChain::Found::unknown:
        leave("llama.cpp computes it without flash attention, in steps that are not known");
        break;
    case AttentionChain::Found::nothing:
        break;
    }
    return false;
}

bool AttentionHook::take_flash(void *node) {
    AttentionOperands operands;
    operands.q = abi_.src_of(node, 0);
    operands.k = abi_.src_of(node, 1);
    operands.v = abi_.src_of(node, 2);
    operands.mask = abi_.src_of(node, 3);
    operands.sinks = abi_.src_of(node, 4);
    // ggml_flash_attn_ext's parameters, which the custom operation's overwrite
    operands.scale = GgmlAbi::read<float>(node, abi_.params);
    operands.max_bias = GgmlAbi::read<float>(node, abi_.params + 4);
    operands.softcap = GgmlAbi::read<float>(node, abi_.params + 8);
    if (operands.q == nullptr || operands.k == nullptr || operands.v == nullptr) {
        return false;
    }
    if (!is_plain(abi_, node, attention_.form_flash)) {
        leave("its node has parameters or sources that are not known");
        others_compute(operands.k);
        return false;
    }
    if (!takes(node, operands, 1)) {
        return false;
    }
    Node &served = node_of(node, operands);
    plan(node, served);
    abi_.make_custom(node, &AttentionHook::compute, &served);
    return true;
}

// All is done where the graph has the product with the keys: ggml may put later nodes where the query and the mask are.
// The result waits in our memory until the product with the values would be computed.
bool AttentionHook::take_chain(void *node) {
    const AttentionOperands &operands = chain_.operands();
    if (!takes(node, operands, 2)) {
        return false;
    }
    void *scores = chain_.scores();
    Node &served = node_of(scores, operands);
    served.result.resize(static_cast<size_t>(abi_.ne_of(operands.v, 1) * abi_.ne_of(operands.q, 2)));
    plan(scores, served);
    chain_.make_no_ops();
    abi_.make_custom(scores, &AttentionHook::compute, &served);
    abi_.make_custom(node, &AttentionHook::deliver, &served);
    return true;
}

// Whether operands and the node of the result, with the heads in dimension `heads`, are for us; else ggml computes it.
bool AttentionHook::takes(const void *node, const AttentionOperands &operands, int heads) {
    const char *why = misfit(abi_, operands);
    // There our kernels of all keys are the scalar ones; those that choose keys take single tokens all the same.
    const bool chosen =
        abi_.ne_of(operands.q, 1) <= kFewQueries && (settings_.chooses_keys() || settings_.event.enabled);
    if (why == nullptr && !kernels().attention.fused && !chosen) {
        why = "this processor has no fused multiply-add";
    }
    if (why == nullptr && !receives(node, operands, heads)) {
        why = "its result has an unexpected type or layout";
    }
    if (why != nullptr) {
        leave(why);
        others_compute(operands.k);
    }
    return why == nullptr;
}

// Whether a node has room for the result, with the heads in dimension `heads`.
bool AttentionHook::receives(const void *node, const AttentionOperands &operands, int heads) const {
    const int64_t dim = abi_.ne_of(operands.v, operands.v_by_channel ? 1 : 0);
    return abi_.type_of(node) == kTypeF32 && abi_.ne_of(node, 0) == dim &&
           abi_.ne_of(node, heads) == abi_.ne_of(operands.q, 2) &&
           abi_.ne_of(node, 3 - heads) == abi_.ne_of(operands.q, 1) &&
           abi_.ne_of(node, 3) == abi_.ne_of(operands.q, 3) && abi_.nb_of(node, 0) == 4 &&
           abi_.nb_of(node, 1) % 4 == 0 && abi_.nb_of(node, 2) % 4 == 0 && abi_.nb_of(node, 3) % 4 == 0;
}

AttentionHook::Node &AttentionHook::node_of(const void *node, const AttentionOperands &operands) {
    std::unique_ptr<Node> &kept = nodes_[node];
    if (kept == nullptr) {
        kept = std::make_unique<Node>();
    }
    kept->hook = this;
    kept->operands = operands;
    kept->result.clear();
    return *kept;
}

// Queries that are not ours are not remembered.
void AttentionHook::others_compute(const void *k) {
    const auto base = reinterpret_cast<uintptr_t>(abi_.data_of(k));
    for (auto at = layers_.lower_bound({base, INT64_MIN}); at != layers_.end() && at->first.first == base; ++at) {
        if (at->second.selector != nullptr) {
            at->second.selector->forget_queries();
        }
    }
}

void AttentionHook::leave(const char *why) {
    left_because_.store(why, std::memory_order_relaxed);
    count(counters_[AttentionCount::left]);
}

AttentionProblem AttentionHook::problem_of(const void *node, Node &served) const {
    AttentionProblem p = seeddelta::problem_of(abi_, served.operands);
    const bool own = served.operands.v_by_channel;
    p.out = own ? served.result.data() : static_cast<float *>(abi_.data_of(node));
    p.out_stride = own ? p.dim_v : abi_.nb_of(node, 1) / 4;
    p.out_query = own ? 0 : abi_.nb_of(node, 2) / 4;
    p.out_stream = own ? 0 : abi_.nb_of(node, 3) / 4;
    return p;
}

// The number of the layer that a node belongs to: llama.cpp's names end in it ("__fattn__-3"). -1: none.
int64_t AttentionHook::number_of(const void *node) const {
    const char *text = abi_.name_of(node);
    const std::string_view name(text, strnlen(text, kMaxName));
    const size_t dash = name.rfind('-');
    if (dash == std::string_view::npos || dash + 1 == name.size() || name.size() - dash > 8 ||
        name.find_first_not_of("0123456789", dash + 1) != std::string_view::npos) {
        return -1;
    }
    return std::strtol(text + dash + 1, nullptr, 10);
}

// What is remembered of a layer whose keys are a view of a cache; made when it is met first. Layers may share a cache,
// but each has queries of its own.
AttentionHook::Layer *AttentionHook::layer_of(const void *node, const void *k, const AttentionProblem &p) {
    const Place place{reinterpret_cast<uintptr_t>(abi_.data_of(k)), number_of(node)};
    const auto known = layers_.find(place);
    if (known != layers_.end()) {
        return &known->second;
    }
    const std::lock_guard lock(mutex_);
    Layer layer = new_layer(k, place.second, p);
    return &layers_.emplace(place, std::move(layer)).first->second;
}

AttentionHook::Layer AttentionHook::new_layer(const void *k, int64_t number, const AttentionProblem &p) {
    Layer layer;
    const void *cache = k;
    while (cache != nullptr && attention_.is_view(abi_.op_of(cache))) {
        cache = abi_.src_of(cache, 0);
    }
    if (cache == nullptr || abi_.op_of(cache) != abi_.op_none) {
        return layer;
    }
    const char *text = abi_.name_of(cache);
    const std::string_view name(text, strnlen(text, kMaxName));
    if (name.substr(0, kCacheName.size()) != kCacheName) {
        return layer;
    }
    if (number < 0) {
        number = std::strtol(std::string(name.substr(kCacheName.size())).c_str(), nullptr, 10);
    }
    layer.rows = abi_.ne_of(cache, 1);
    layer.row_bytes = abi_.nb_of(cache, 1);
    if (abi_.nb_of(k, 1) == layer.row_bytes) {
        layer.selector = make_selector(settings_, number, p, layer.rows, totals_, missing_head_);
    }
    return layer;
}

// What the next computation of the node will do. All its threads go by it.
void AttentionHook::plan(const void *node, Node &served) {
    served.ready = false;
    served.done = false;
    const AttentionProblem p = problem_of(node, served);
    served.layer = layer_of(node, served.operands.k, p);
    KeySelector *selector = served.layer->selector.get();
    served.plan.chosen = false;
    if (selector != nullptr) {
        if (!paused_.load(std::memory_order_relaxed) && p.tokens() == 1 && p.n_kv > settings_.min_context &&
            p.masked() && p.max_bias == 0.0F && selector->fits(p)) {
            served.plan.chosen = selector->plan(p, compute_, served.plan);
        } else {
            selector->forget_queries(); // of what this token changes
        }
    }
    compute_.reserve(p, false, false);
    arenas_.reserve(Attention::scratch_bytes(p));
    served.ready = true;
    tokens_ = std::max(tokens_, p.tokens());
    count(counters_[AttentionCount::nodes]);
}

void AttentionHook::compute(void *dst, int ith, int nth, void *userdata) noexcept {
    auto *node = static_cast<Node *>(userdata);
    node->hook->run(dst, ith, nth, *node);
}

void AttentionHook::run(void *dst, int ith, int nth, Node &node) {
    if (!node.ready) { // the decode is refused
        return;
    }
    const int workers = arenas_.workers(nth);
    if (ith < workers) {
        const Arenas::Loan loan(arenas_, ith);
        const AttentionProblem p = problem_of(dst, node);
        if (node.plan.chosen) {
            node.layer->selector->attend(p, compute_, node.plan, ith, workers);
        } else {
            compute_.exact(p, ith, workers);
        }
    }
    // The last thread to leave sees what all others wrote; nobody waits, ggml has its own barrier.
    if (node.finished.fetch_add(1, std::memory_order_acq_rel) + 1 == nth) {
        node.finished.store(0, std::memory_order_relaxed);
        node.done = true;
        settle(node);
    }
}

// Where the graph has the product with the values. Zeros when ggml had computed the scores before the chain was whole.
void AttentionHook::deliver(void *dst, int ith, int nth, void *userdata) noexcept {
    const auto *node = static_cast<const Node *>(userdata);
    const GgmlAbi &abi = node->hook->abi_;
    const int64_t dim = abi.ne_of(dst, 0);
    const int64_t heads = abi.ne_of(dst, 2);
    if (!node->done && node->ready) {
        node->hook->in_pieces_.store(true, std::memory_order_relaxed);
    }
    for (int64_t head = heads * ith / nth; head < heads * (ith + 1) / nth; ++head) {
        auto *out = reinterpret_cast<float *>(static_cast<uint8_t *>(abi.data_of(dst)) + head * abi.nb_of(dst, 2));
        if (node->done) {
            std::copy_n(node->result.data() + head * dim, dim, out);
        } else {
            std::fill_n(out, dim, 0.0F);
        }
    }
}

// What others may read meanwhile is written under the lock, once an operation.
void AttentionHook::settle(Node &node) {
    const std::lock_guard lock(mutex_);
    const bool prompt = abi_.ne_of(node.operands.q, 1) > kFewQueries;
    count(prompt ? counters_[AttentionCount::prompts] : counters_[AttentionCount::exact], node.plan.chosen ? 0 : 1);
    if (node.layer->selector != nullptr) {
        node.layer->selector->settle(node.plan);
    }
}

SelectorReport AttentionHook::report() const {
    const std::lock_guard lock(mutex_);
    SelectorReport sum;
    for (const auto &[place, layer] : layers_) {
        if (layer.selector != nullptr) {
            layer.selector->report(sum);
        }
    }
    return sum;
}

std::pair<double, double> AttentionHook::gap_and_recall_sum() const {
    const std::lock_guard lock(mutex_);
    return {totals_.gap_sum, totals_.recall_sum};
}

} // namespace seeddelta
