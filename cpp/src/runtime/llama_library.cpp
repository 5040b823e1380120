#include "runtime/llama_library.hpp"

#include <dlfcn.h>
#include <link.h>

#include <fstream>
#include <new>
#include <string>
#include <string_view>

#include "ggml_host/graph_hook.hpp"
#include "gguf/error.hpp"
#include "gguf/ggml_types.hpp"

namespace seeddelta {

namespace {

// GGML_BACKEND_DEVICE_TYPE_…; GPU and IGPU lie between
constexpr int kCpu = 0;
constexpr int kAccelerator = 3;

// The name of the first device for which `fits` holds; empty: none.
template <class F>
std::string find_device(F &&fits) {
    const auto count = LlamaLibrary::get<size_t (*)()>("ggml_backend_dev_count");
    const auto device = LlamaLibrary::get<void *(*)(size_t)>("ggml_backend_dev_get");
    const auto kind = LlamaLibrary::get<int (*)(void *)>("ggml_backend_dev_type");
    const auto name = LlamaLibrary::get<const char *(*)(void *)>("ggml_backend_dev_name");
    for (size_t i = 0; i < count(); ++i) {
        if (fits(kind(device(i)))) {
            return name(device(i));
        }
    }
    return {};
}

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

bool has_amx() {
    std::ifstream info("/proc/cpuinfo");
    for (std::string line; std::getline(info, line);) {
        if (line.starts_with("flags")) {
            return line.find(" amx_int8") != std::string::npos;
        }
    }
    return false;
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
    check_devices();
    try {
        abi_ = probe_ggml(addresses(ggml_required_symbols()), &GraphHook::compute);
    } catch (const AbiProbeError &error) {
        unsupported(error.what());
    }
    graph_size_ = get<int (*)(void *)>("ggml_graph_n_nodes");
    graph_node_ = get<void *(*)(void *, int)>("ggml_graph_node");
    choose_placeholders();
}

std::map<std::string, uintptr_t> LlamaLibrary::addresses(const std::vector<std::string> &names) {
    std::map<std::string, uintptr_t> found;
    for (const std::string &name : names) {
        found[name] = reinterpret_cast<uintptr_t>(find(name.c_str()));
    }
    return found;
}

const AttentionAbi &LlamaLibrary::attention() const {
    static const AttentionAbi *const abi = [this] { // never freed, as the library
        std::map<std::string, uintptr_t> symbols = addresses(ggml_required_symbols());
        symbols.merge(addresses(attention_required_symbols()));
        try {
            return new AttentionAbi(probe_attention(symbols, abi_));
        } catch (const AbiProbeError &error) {
            throw ModelFileError(std::string("attention cannot be taken over in this llama.cpp: ") + error.what());
        }
    }();
    return *abi;
}

std::string LlamaLibrary::other_device() {
    return find_device([](int kind) { return kind != kCpu; });
}

// A BLAS device claims the products of a prompt and aborts on a custom operation.
void LlamaLibrary::check_devices() {
    const std::string found = find_device([](int kind) { return kind == kAccelerator; });
    if (!found.empty()) {
        unsupported("its accelerator " + found + " takes the prompts away from the CPU");
    }
}

// The CPU backend of x86 repacks none of these: a repacked type would be copied into memory of its own. Q1_0 is
// repacked on ARM, Q4_1 with AMX. ggml looks a number up without a check, so those that it may not have are never asked
// for.
void LlamaLibrary::choose_placeholders() {
    struct Candidate {
        const char *with; // a function that came with it
        uint32_t type;
        bool fits;
    };
#if defined(__x86_64__)
    const bool x86 = true;
#else
    const bool x86 = false;
#endif
    const Candidate candidates[] = {{"dequantize_row_q1_0", 41, x86},
                                    {"dequantize_row_q2_0", 42, true},
                                    {"dequantize_row_q4_1", 3, !has_amx()},
                                    {"ggml_init", static_cast<uint32_t>(kTypeF16), true}};
    for (const Candidate &one : candidates) {
        const GgmlType &type = *ggml_type(one.type);
        const auto number = static_cast<int32_t>(one.type);
        if (one.fits && find(one.with) != nullptr && abi_.block_size(number) == type.block &&
            static_cast<int64_t>(abi_.type_size(number)) == type.bytes) {
            placeholders_.push_back(one.type);
        }
    }
}

uint32_t LlamaLibrary::placeholder_type(int64_t n_in) const {
    for (const uint32_t type : placeholders_) {
        if (n_in % ggml_type(type)->block == 0) {
            return type;
        }
    }
    return static_cast<uint32_t>(kTypeF16);
}

} // namespace seeddelta
