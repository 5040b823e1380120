// The C API (seeddelta/model.h): the models and contexts of the host, by hand.
#include "seeddelta/model.h"

#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <string>

#include "gguf/error.hpp"
#include "runtime/host.hpp"

#define SEEDDELTA_EXPORT extern "C" __attribute__((visibility("default")))

struct seeddelta_model {
    std::shared_ptr<seeddelta::ServedModel> model;
    std::shared_ptr<seeddelta::StubFile> stub;
};

using seeddelta::Host;
using seeddelta::ModelFileError;
using seeddelta::ServedContext;

namespace {

thread_local std::string last_error;

// What `work` returns; otherwise `failed`, and the error is kept.
template <class T, class F>
T guarded(T failed, F &&work) noexcept {
    try {
        try {
            return work();
        } catch (const std::bad_alloc &) {
            last_error = "no memory; free some";
        } catch (const std::exception &error) {
            last_error = error.what();
        }
    } catch (...) { // no memory for the text
        last_error.clear();
    }
    return failed;
}

ServedContext *served(void *context) { // as seeddelta_attach gave it out
    return static_cast<ServedContext *>(context);
}

} // namespace

SEEDDELTA_EXPORT const char *seeddelta_last_error(void) {
    return last_error.c_str();
}

SEEDDELTA_EXPORT bool seeddelta_automatic(void) {
    void *const process = dlopen(nullptr, RTLD_LAZY); // without what is loaded for one library alone
    const auto is_ours = [process](const char *name) {
        Dl_info ours = {}, called = {};
        void *function = process == nullptr ? nullptr : dlsym(process, name);
        return function != nullptr && dladdr(reinterpret_cast<void *>(&seeddelta_automatic), &ours) != 0 &&
               dladdr(function, &called) != 0 && ours.dli_fbase == called.dli_fbase;
    };
    return is_ours("llama_model_load_from_file") && is_ours("ggml_backend_sched_graph_compute_async");
}

SEEDDELTA_EXPORT seeddelta_model *seeddelta_open(const char *path, const char *settings) {
    return guarded<seeddelta_model *>(nullptr, [&] {
        if (path == nullptr) {
            throw ModelFileError("seeddelta_open: the path is NULL");
        }
        auto model = Host::instance().open(path, settings);
        if (model == nullptr) {
            throw ModelFileError(std::string(path) + ": is no SeedΔ file; give it to llama.cpp itself");
        }
        return new seeddelta_model{std::move(model), nullptr};
    });
}

SEEDDELTA_EXPORT void seeddelta_info_of(const seeddelta_model *model, seeddelta_info *info) {
    uint64_t weights = 0, bytes = 0;
    for (const seeddelta::TensorDescription &d : model->model->served()) {
        weights += static_cast<uint64_t>(d.n_out * d.n_in * d.matrices());
    }
    for (const auto &[address, size] : model->model->payload()) {
        bytes += size;
    }
    *info = {model->model->served().size(), model->model->dense().size(), model->model->file_bytes(), weights,
             weights == 0 ? 0.0 : 8.0 * static_cast<double>(bytes) / static_cast<double>(weights)};
}

SEEDDELTA_EXPORT void seeddelta_free(seeddelta_model *model) {
    delete model;
}

SEEDDELTA_EXPORT const char *seeddelta_stub_path(seeddelta_model *model) {
    return guarded<const char *>(nullptr, [&] {
        model->stub = Host::instance().stub_of(*model->model);
        return model->stub->path().c_str();
    });
}

SEEDDELTA_EXPORT int seeddelta_loaded(seeddelta_model *model) {
    return guarded(1, [&] {
        const auto stub = std::move(model->stub);
        if (stub == nullptr) {
            throw ModelFileError(model->model->path() + ": seeddelta_stub_path was not asked for");
        }
        Host::instance().loaded(*model->model, *stub);
        if (!stub->sealed()) {
            throw ModelFileError(model->model->path() + ": llama.cpp did not map the stub file; load it with mmap");
        }
        return 0;
    });
}

SEEDDELTA_EXPORT seeddelta_context *seeddelta_attach(seeddelta_model *model) {
    return guarded<seeddelta_context *>(nullptr, [&] {
        if (seeddelta_automatic()) {
            throw ModelFileError(model->model->path() + ": contexts of this process are attached by themselves");
        }
        return reinterpret_cast<seeddelta_context *>(Host::instance().attach(model->model));
    });
}

SEEDDELTA_EXPORT bool seeddelta_eval(ggml_tensor *tensor, bool ask, void *context) {
    return served(context)->eval(tensor, ask);
}

SEEDDELTA_EXPORT int seeddelta_check(seeddelta_context *context) {
    return guarded(1, [&] {
        if (const std::string why = served(context)->settle(true).why; !why.empty()) {
            throw ModelFileError(why);
        }
        if (served(context)->nodes_seen() == 0) {
            throw ModelFileError(served(context)->where() +
                                 ": no graph was shown to seeddelta_eval; give it to the context as cb_eval");
        }
        return 0;
    });
}

SEEDDELTA_EXPORT void seeddelta_detach(seeddelta_context *context) {
    Host::instance().freed(context);
}

SEEDDELTA_EXPORT char *seeddelta_metrics(void) {
    return guarded<char *>(nullptr, [] {
        char *text = strdup(Host::instance().metrics().c_str());
        if (text == nullptr) {
            throw std::bad_alloc();
        }
        return text;
    });
}
