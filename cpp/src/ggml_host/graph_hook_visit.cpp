// How the graph hook walks a graph: which weight a node is of, whether it is served, and what it takes.
#include "ggml_host/graph_hook.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string_view>

#include "format/counter.hpp"
#include "ggml_host/node_form.hpp"

namespace seeddelta {

// All nodes of a split are visited in order before any of them is computed.
void GraphHook::visit(void *node) {
    count(nodes_seen_);
    if (attention_ != nullptr && attention_->visit(node)) {
        return;
    }
    // Activations are shared between neighbors of one walk only: not when a product ran since (a new walk), and not
    // when x itself is computed again or overwritten.
    const uint64_t products = products_.load(std::memory_order_relaxed);
    if (products != products_at_visit_ || node == previous_.x || abi_.data_of(node) == previous_.data) {
        products_at_visit_ = products;
        previous_ = {};
    }
    WeightUse use = use_of(node);
    bool elsewhere = false;
    ServedWeight *served = use == WeightUse::none ? nullptr : find(abi_.src_of(node, 0), elsewhere);
    check_use(node, served != nullptr && !elsewhere ? 1 : 0);
    if (served == nullptr || elsewhere) {
        return;
    }
    const WeightUse as_found = use;
    const Operator &op = *served->weight->op;
    if (use == WeightUse::product && op.shape().n_experts > 1) {
        use = WeightUse::experts; // every head its own
    }
    if (!fits(node, use, op)) {
        refuse(HookErrorKind::layout, *served, node, "has operands of an unexpected type or layout");
        return;
    }
    if (!is_plain(abi_, node, form_of(as_found)) && abi_.op_of(node) != abi_.op_custom) {
        refuse(HookErrorKind::layout, *served, node, difference(abi_, node, form_of(as_found)).c_str());
        return;
    }
    served->dense = served->weight->use_dense.load(std::memory_order_relaxed);
    make_room(node, *served, use);
    if (use == WeightUse::lookup) {
        abi_.make_custom(node, &served->node(use, false));
    } else {
        serve_product(node, *served, use);
    }
    count(served->counters[WeightCount::rewrites]);
}

// What a node would do with a weight in its first source; our own nodes are met again when a graph is used again.
WeightUse GraphHook::use_of(const void *node) const {
    const int32_t op = abi_.op_of(node);
    if (op == abi_.op_mul_mat) {
        return WeightUse::product;
    }
    if (op == abi_.op_mul_mat_id) {
        return WeightUse::experts;
    }
    if (op == abi_.op_get_rows) {
        return WeightUse::lookup;
    }
    if (!abi_.is_custom(node, &GraphHook::compute)) {
        return WeightUse::none;
    }
    const auto *own = static_cast<const ServedWeight::Node *>(abi_.custom_userdata(node));
    return own->hook == this ? own->use : WeightUse::none;
}

const NodeForm &GraphHook::form_of(WeightUse use) const {
    return use == WeightUse::product   ? abi_.form_mul_mat
           : use == WeightUse::experts ? abi_.form_mul_mat_id
                                       : abi_.form_get_rows;
}

// Everything that computing the node takes, also from the original model when the result is not finite.
void GraphHook::make_room(const void *node, const ServedWeight &served, WeightUse use) {
    const RegisteredWeight &weight = *served.weight;
    const Work work = work_of(node, use, false);
    int64_t bytes = weight.op->reserve(work, served.state, arenas_.wanted(), workspace_);
    if (weight.dense != nullptr) {
        bytes = std::max(bytes, weight.dense->reserve(work, served.state, arenas_.wanted(), workspace_));
    }
    arenas_.reserve(bytes);
}

void GraphHook::serve_product(void *node, ServedWeight &served, WeightUse use) {
    const void *x = abi_.src_of(node, 1);
    const void *data = abi_.data_of(x);
    const void *ids = use == WeightUse::experts ? abi_.src_of(node, 2) : nullptr;
    const bool reuse = previous_.served != nullptr && previous_.x == x && previous_.data == data &&
                       previous_.ids == ids &&
                       can_reuse(previous_.served->weight->op->input_form(), served.weight->op->input_form());
    abi_.make_custom(node, &served.node(use, reuse));
    previous_ = {x, data, ids, &served};
    if (served.state.gate != nullptr) {
        gated_tokens_ = std::max(gated_tokens_, tokens_of(x));
    }
    if (last_product_ != nullptr) {
        last_product_->next = use == WeightUse::product ? &served : nullptr; // which experts come is not known yet
    }
    last_product_ = &served;
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

// A registered weight has no dense data: any other use of it, whole or a part, would read its hole. `first` sources are
// served.
void GraphHook::check_use(const void *node, int first) {
    for (int i = first; i < abi_.n_src(); ++i) {
        const void *source = abi_.src_of(node, i);
        if (source == nullptr) {
            continue; // sources may follow: those of attention without a mask do
        }
        bool elsewhere = false;
        const ServedWeight *served = find(abi_.root_of(source), elsewhere);
        if (served != nullptr) {
            refuse(HookErrorKind::not_served, *served, node,
                   elsewhere ? "a copy on another device" : abi_.op_name(abi_.op_of(node)));
        }
    }
}

// Names the node, too.
void GraphHook::refuse(HookErrorKind kind, const ServedWeight &served, const void *node, const char *what) {
    int none = 0;
    if (error_kind_.compare_exchange_strong(none, -1)) {
        const char *name = abi_.name_of(node);
        static_cast<void>(std::snprintf(refusal_.data(), refusal_.size(), "%s, node '%.*s'", what,
                                        static_cast<int>(strnlen(name, kMaxName)), name));
        error_weight_.store(&served);
        error_detail_.store(refusal_.data());
        error_kind_.store(static_cast<int>(kind));
    }
}

} // namespace seeddelta
