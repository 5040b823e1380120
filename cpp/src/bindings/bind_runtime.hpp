// The Python classes WeightRegistry and GraphHook.
#pragma once
#include <pybind11/pybind11.h>

#include <memory>
#include <utility>
#include <vector>

#include "ggml_host/graph_hook.hpp"
#include "ggml_host/loaded_ggml.hpp"

namespace seeddelta {

// Keeps alive what the registry points to.
struct PyRegistry {
    std::shared_ptr<WeightRegistry> registry;
    std::shared_ptr<const LoadedGgml> ggml;
    std::vector<pybind11::object> keep;
};

struct PyHook {
    PyHook(std::shared_ptr<PyRegistry> weights)
        : registry(std::move(weights)), hook(registry->ggml->abi(), *registry->registry) {}
    std::shared_ptr<PyRegistry> registry;
    GraphHook hook;
};

void bind_runtime(pybind11::module_ &m);
// Called by bind_runtime.
void bind_attention(pybind11::module_ &m);
void bind_proof(pybind11::module_ &m);
// Before and behind the classes that they need.
void bind_options(pybind11::module_ &m);
void bind_own_attention(pybind11::module_ &m);

} // namespace seeddelta
