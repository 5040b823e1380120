// The Python class AttentionHook, which a GraphHook can be given.
#pragma once
#include <pybind11/pybind11.h>
#include <pybind11/typing.h>

#include <memory>
#include <utility>

#include "ggml_host/attention_hook.hpp"

namespace seeddelta {

struct PyAttention {
    PyAttention(std::shared_ptr<const GgmlAbi> layout, const AttentionAbi &attention, AttentionSettings settings)
        : abi(std::move(layout)), hook(*abi, attention, std::move(settings)) {}
    std::shared_ptr<const GgmlAbi> abi;
    AttentionHook hook;
};

// Called by bind_runtime between the class GgmlAbi, which it needs, and GraphHook, which needs it.
void bind_attention(pybind11::module_ &m);
// Called by bind_attention.
void bind_attention_run(pybind11::module_ &m);

using FloatDict = pybind11::typing::Dict<pybind11::str, pybind11::float_>;
FloatDict event_counters(const EventCounters &c);

} // namespace seeddelta
