#include "runtime/llama_library.hpp"

#include <dlfcn.h>
#include <link.h>

#include <new>
#include <string>
#include <string_view>

#include "gguf/error.hpp"

namespace seeddelta {

namespace {

[[noreturn]] void unsupported(const std::string &what) {
    throw ModelFileError("this llama.cpp cannot run SeedΔ models: " + what);
}

// Names of the loaded objects that are llama.cpp's.
std::vector<std::string> objects() {
    struct Found {
        std::vector<std::string> names;
        bool complete = true;
    } found;
    dl_iterate_phdr(
        [](dl_phdr_info *info, size_t, void *data) noexcept {
            auto *to = static_cast<Found *>(data);
            const std::string_view path(info->dlpi_name == nullptr ? "" : info->dlpi_name);
            const std::string_view name = path.substr(path.rfind('/') + 1);
            try {
                if (name.starts_with("libllama") || name.starts_with("libggml")) {
                    to->names.emplace_back(path);
                }
            } catch (const std::bad_alloc &) { // must not pass through the C library
                to->complete = false;
            }
            return 0;
        },
        &found);
    if (!found.complete) {
        throw std::bad_alloc();
    }
    return found.names;
}

} // namespace

void LlamaLibrary::missing(const char *name) {
    unsupported(std::string("the function ") + name + " is missing");
}

void *LlamaLibrary::find(const char *name) {
    void *found = dlsym(RTLD_NEXT, name);
    if (found != nullptr) {
        return found;
    }
    for (const std::string &object : objects()) { // loaded for one library alone, as Python does
        void *handle = dlopen(object.c_str(), RTLD_LAZY | RTLD_NOLOAD);
        if (handle == nullptr) {
            continue;
        }
        found = dlsym(handle, name);
        dlclose(handle);
        if (found != nullptr) {
            return found;
        }
    }
    return nullptr;
}

const LlamaLibrary &LlamaLibrary::loaded() {
    static const auto *library = new LlamaLibrary(); // never freed: threads may compute while the process ends
    return *library;
}

LlamaLibrary::LlamaLibrary() {
    try {
        std::map<std::string, uintptr_t> addresses;
        for (const std::string &name : LoadedGgml::symbols()) {
            addresses[name] = reinterpret_cast<uintptr_t>(find(name.c_str()));
        }
        ggml_.emplace(std::move(addresses));
    } catch (const AbiProbeError &error) {
        unsupported(error.what());
    }
    graph_size_ = get<int (*)(void *)>("ggml_graph_n_nodes");
    graph_node_ = get<void *(*)(void *, int)>("ggml_graph_node");
}

const AttentionAbi &LlamaLibrary::attention() const {
    try {
        return ggml_->attention();
    } catch (const AbiProbeError &error) {
        throw ModelFileError(std::string("attention cannot be taken over in this llama.cpp: ") + error.what());
    }
}

std::string LlamaLibrary::other_device() {
    constexpr int kCpu = 0; // GGML_BACKEND_DEVICE_TYPE_CPU
    const auto device = get<void *(*)(size_t)>("ggml_backend_dev_get");
    const auto kind = get<int (*)(void *)>("ggml_backend_dev_type");
    const auto name = get<const char *(*)(void *)>("ggml_backend_dev_name");
    const size_t count = get<size_t (*)()>("ggml_backend_dev_count")();
    for (size_t i = 0; i < count; ++i) {
        if (kind(device(i)) != kCpu) {
            return name(device(i));
        }
    }
    return {};
}

} // namespace seeddelta
