// The functions of llama.cpp that a preloaded library takes the place of. Programs load models, make contexts and write
// to caches through the first ones; libllama itself calls the others before each graph, when a context ends, and when a
// program wants to see nodes.
#include <cstring>
#include <exception>
#include <new>
#include <string>

#include "runtime/host.hpp"
#include "runtime/llama_library.hpp"
#include "runtime/say.hpp"
#include "seeddelta/model.h"

#define SEEDDELTA_EXPORT extern "C" __attribute__((visibility("default")))

using seeddelta::Host;
using seeddelta::LlamaLibrary;
using seeddelta::say;

namespace {

// llama_model_params, which is passed by value: more bytes than any release has. Its first field are the devices. And
// llama_context_params.
struct ModelParams {
    unsigned char bytes[256];
};
using MakeContext = void *(*)(void *model, ModelParams params);
using LoadModel = void *(*)(const char *path, ModelParams params);
using LoadSplits = void *(*)(const char **paths, size_t count, ModelParams params);
using EvalCallback = bool (*)(ggml_tensor *tensor, bool ask, void *data);

void *no_devices[1]; // a list that ends at once

// A model is loaded without devices: a build of llama.cpp for GPUs computes it as one for the CPU does.
ModelParams on_cpu(ModelParams params) {
    void *const list = no_devices;
    std::memcpy(params.bytes, &list, sizeof(list));
    return params;
}

void *load(const std::shared_ptr<seeddelta::ServedModel> &model, const ModelParams &params) {
    const auto real = LlamaLibrary::get<LoadModel>("llama_model_load_from_file");
    const auto free_model = LlamaLibrary::get<void (*)(void *)>("llama_model_free");
    if (!model->options().metrics_json.empty()) {
        Host::write_metrics_at_exit();
    }
    const std::shared_ptr<seeddelta::StubFile> stub = Host::instance().stub_of(*model);
    void *loaded = real(stub->path().c_str(), on_cpu(params));
    if (loaded == nullptr) {
        return nullptr;
    }
    try {
        Host::instance().loaded(*model, *stub);
    } catch (...) {
        free_model(loaded);
        throw;
    }
    return loaded;
}

// What `ordinary` returns for a model that is not ours. Null, and a line, when something is wrong.
template <class F>
void *guarded(const char *path, const ModelParams &params, F &&ordinary) noexcept {
    try {
        const std::shared_ptr<seeddelta::ServedModel> model = Host::instance().open(path);
        return model == nullptr ? ordinary() : load(model, params);
    } catch (const std::bad_alloc &) {
        say({"error: no memory to load the model; free some"});
    } catch (const std::exception &error) {
        say({"error: ", error.what()});
    } catch (...) {
        say({"error: the model cannot be loaded"});
    }
    return nullptr;
}

template <class F>
F next(const char *name) noexcept {
    try {
        return LlamaLibrary::get<F>(name);
    } catch (const std::exception &error) {
        say({"error: ", error.what()});
        return nullptr;
    }
}

} // namespace

SEEDDELTA_EXPORT void *llama_model_load_from_file(const char *path, ModelParams params) {
    return guarded(path, params, [&]() -> void * {
        const auto real = next<LoadModel>("llama_model_load_from_file");
        return real == nullptr ? nullptr : real(path, params);
    });
}

SEEDDELTA_EXPORT void *llama_load_model_from_file(const char *path, ModelParams params) {
    return llama_model_load_from_file(path, params);
}

SEEDDELTA_EXPORT void *llama_model_load_from_splits(const char **paths, size_t count, ModelParams params) {
    return guarded(count > 0 && paths != nullptr ? paths[0] : nullptr, params, [&]() -> void * {
        const auto real = next<LoadSplits>("llama_model_load_from_splits");
        return real == nullptr ? nullptr : real(paths, count, params);
    });
}

SEEDDELTA_EXPORT void *llama_init_from_model(void *model, ModelParams params) {
    const auto real = next<MakeContext>("llama_init_from_model");
    void *context = real == nullptr ? nullptr : real(model, params);
    try {
        const auto sequences = LlamaLibrary::get<uint32_t (*)(void *)>("llama_n_seq_max");
        if (context != nullptr && sequences(context) > 1 && Host::instance().of_one_sequence()) {
            say({"error: events and keys chosen by their bits follow the tokens of one sequence; leave them out, or "
                 "serve one (-np 1, or with llama-perplexity as many tokens a batch as a context has)"});
            LlamaLibrary::get<void (*)(void *)>("llama_free")(context);
            return nullptr;
        }
    } catch (const std::exception &error) {
        say({"error: ", error.what()});
    }
    return context;
}

SEEDDELTA_EXPORT void *llama_new_context_with_model(void *model, ModelParams params) {
    return llama_init_from_model(model, params);
}

// What writes to caches without a graph. Of all of them arguments and result are whole numbers and addresses, six at
// most, which are passed on in their registers.
#define SEEDDELTA_WRITES(name)                                                                                         \
    SEEDDELTA_EXPORT uintptr_t name(uintptr_t a, uintptr_t b, uintptr_t c, uintptr_t d, uintptr_t e, uintptr_t f) {    \
        using Write = uintptr_t (*)(uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t);                 \
        static const auto real = next<Write>(#name);                                                                   \
        const uintptr_t result = real == nullptr ? 0 : real(a, b, c, d, e, f);                                         \
        Host::instance().forget_keys();                                                                                \
        return result;                                                                                                 \
    }

SEEDDELTA_WRITES(llama_state_set_data)
SEEDDELTA_WRITES(llama_set_state_data)
SEEDDELTA_WRITES(llama_state_load_file)
SEEDDELTA_WRITES(llama_load_session_file)
SEEDDELTA_WRITES(llama_state_seq_set_data)
SEEDDELTA_WRITES(llama_state_seq_set_data_ext)
SEEDDELTA_WRITES(llama_state_seq_load_file)
SEEDDELTA_WRITES(llama_memory_seq_cp)

SEEDDELTA_EXPORT int ggml_backend_sched_graph_compute_async(void *scheduler, void *graph) {
    static const auto real = next<seeddelta::ComputeGraph>("ggml_backend_sched_graph_compute_async");
    return real == nullptr ? seeddelta::kStatusFailed : Host::instance().compute(scheduler, graph, real);
}

SEEDDELTA_EXPORT void ggml_backend_sched_set_eval_callback(void *scheduler, EvalCallback callback, void *data) {
    static const auto real = next<void (*)(void *, EvalCallback, void *)>("ggml_backend_sched_set_eval_callback");
    if (callback == &seeddelta_eval) {
        Host::instance().leave(scheduler); // the program has attached it
    } else {
        Host::instance().watched(scheduler, callback != nullptr);
    }
    if (real != nullptr) {
        real(scheduler, callback, data);
    }
}

SEEDDELTA_EXPORT void ggml_backend_sched_free(void *scheduler) {
    static const auto real = next<void (*)(void *)>("ggml_backend_sched_free");
    Host::instance().freed(scheduler);
    if (real != nullptr) {
        real(scheduler);
    }
}
