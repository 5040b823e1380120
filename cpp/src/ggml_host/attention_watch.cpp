// What graphs write to the caches of keys, so that no bits are there for what is no longer.
#include <iterator>

#include "ggml_host/attention_hook.hpp"

namespace seeddelta {

// Any node but a view whose data lie in a cache of keys writes to it.
void AttentionHook::watch(const void *node) {
    const int32_t op = abi_.op_of(node);
    const auto data = reinterpret_cast<uintptr_t>(abi_.data_of(node));
    auto after = layers_.upper_bound({data, INT64_MAX});
    if (attention_.is_view(op) || op == abi_.op_none || after == layers_.begin()) {
        return;
    }
    if (op == attention_.op_set_rows) {
        watch_rows(node);
        return;
    }
    const uintptr_t address = std::prev(after)->first.first;
    while (after != layers_.begin() && (--after)->first.first == address) {
        Layer &layer = after->second;
        if (layer.selector != nullptr && data < address + static_cast<uintptr_t>(layer.rows * layer.row_bytes)) {
            layer.selector->forget();
        }
    }
}

// The numbers of the rows are an input, which llama.cpp sets before it has the graph computed.
void AttentionHook::watch_rows(const void *node) {
    const void *index = abi_.src_of(node, static_cast<int>(attention_.set_rows_index));
    const auto data = reinterpret_cast<uintptr_t>(abi_.data_of(node));
    const int64_t row_bytes = abi_.nb_of(node, 1);
    const auto end = data + static_cast<uintptr_t>(row_bytes * abi_.ne_of(node, 1));
    const int32_t type = abi_.type_of(index);
    const bool wide = type == kTypeI64;
    const bool readable = (wide || type == kTypeI32) && abi_.op_of(index) == abi_.op_none &&
                          abi_.data_of(index) != nullptr && abi_.ne_of(index, 1) == 1 && abi_.ne_of(index, 2) == 1;
    // the keys of several streams lie one after another in the tensor that is written
    auto layer = layers_.upper_bound({data, INT64_MAX});
    if (layer != layers_.begin()) {
        layer = layers_.lower_bound({std::prev(layer)->first.first, INT64_MIN});
    }
    for (; layer != layers_.end() && layer->first.first < end; ++layer) {
        const uintptr_t address = layer->first.first;
        if (address + static_cast<uintptr_t>(layer->second.rows * layer->second.row_bytes) <= data) {
            continue;
        }
        KeySelector *selector = layer->second.selector.get();
        if (selector == nullptr) {
            continue;
        }
        if (!readable || row_bytes != layer->second.row_bytes || data > address ||
            (address - data) % static_cast<uintptr_t>(row_bytes) != 0) {
            selector->forget();
            continue;
        }
        const auto first = static_cast<int64_t>((address - data) / static_cast<uintptr_t>(row_bytes));
        if (abi_.ne_of(index, 0) > 1) { // a prompt, whose queries are not remembered
            selector->forget_queries();
        }
        const auto *numbers = static_cast<const uint8_t *>(abi_.data_of(index));
        for (int64_t i = 0; i < abi_.ne_of(index, 0); ++i) {
            const auto at = static_cast<size_t>(i * abi_.nb_of(index, 0));
            const int64_t row =
                (wide ? GgmlAbi::read<int64_t>(numbers, at) : GgmlAbi::read<int32_t>(numbers, at)) - first;
            if (row >= 0 && row < layer->second.rows) {
                selector->written(row);
            }
        }
    }
}

} // namespace seeddelta
