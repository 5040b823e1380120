// The llama.cpp that this process has loaded: functions by name, the layout of its tensors, what it cannot serve.
#pragma once
#include <optional>

#include "ggml_host/loaded_ggml.hpp"

namespace seeddelta {

class LlamaLibrary {
public:
    // The function of a loaded library, behind the one that asks; null: there is none.
    static void *find(const char *name);
    template <class F>
    static F get(const char *name) {
        void *found = find(name);
        if (found == nullptr) {
            missing(name);
        }
        return reinterpret_cast<F>(found);
    }

    // Probed, and tried, once. Throws ModelFileError for a llama.cpp that cannot be served.
    static const LlamaLibrary &loaded();

    // The first device that is no CPU, and may compute parts of a graph; empty: there is none.
    static std::string other_device();

    const GgmlAbi &abi() const { return ggml_->abi(); }
    const LoadedGgml &ggml() const { return *ggml_; }
    // What taking over attention needs, probed when it is asked for. Throws ModelFileError.
    const AttentionAbi &attention() const;

    int graph_size(void *graph) const { return graph_size_(graph); }
    void *graph_node(void *graph, int i) const { return graph_node_(graph, i); }

private:
    LlamaLibrary();
    [[noreturn]] static void missing(const char *name);

    std::optional<LoadedGgml> ggml_;
    int (*graph_size_)(void *) = nullptr;
    void *(*graph_node_)(void *, int) = nullptr;
};

} // namespace seeddelta
