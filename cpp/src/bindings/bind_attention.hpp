// The Python class AttentionHook, which a GraphHook can be given.
#pragma once
#include <pybind11/pybind11.h>
#include <pybind11/typing.h>

#include <memory>
#include <utility>

#include "ggml_host/attention_hook.hpp"
#include "ggml_host/loaded_ggml.hpp"

namespace seeddelta {

struct PyAttention {
    PyAttention(std::shared_ptr<const LoadedGgml> loaded, AttentionSettings settings)
        : ggml(std::move(loaded)), hook(ggml->abi(), ggml->attention(), std::move(settings)) {}
    std::shared_ptr<const LoadedGgml> ggml;
    AttentionHook hook;
};

// Called by bind_runtime between the class LoadedGgml, which it needs, and GraphHook, which needs it.
void bind_attention(pybind11::module_ &m);
// Called by bind_attention.
void bind_attention_run(pybind11::module_ &m);

using FloatDict = pybind11::typing::Dict<pybind11::str, pybind11::float_>;
FloatDict event_counters(const EventCounters &c);

} // namespace seeddelta
