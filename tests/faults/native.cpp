// Preloaded beside the library for llama.cpp's programs: lets one of its allocations fail. Its C++ library is part of
// it, so it is malloc that it calls.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <dlfcn.h>
#include <link.h>

namespace {

std::atomic<uintptr_t> range_begin{0}, range_end{0};
std::atomic<long> seen{0}, fail_at{0};

bool fails(const void *caller) {
    const auto at = reinterpret_cast<uintptr_t>(caller);
    return at >= range_begin.load() && at < range_end.load() && ++seen == fail_at.load();
}

template <class F>
F next(const char *name) {
    return reinterpret_cast<F>(dlsym(RTLD_NEXT, name));
}

} // namespace

extern "C" {

// The next `number`th allocation fails; 0: none.
void faults_arm(long number) {
    dl_iterate_phdr(
        [](dl_phdr_info *info, size_t, void *) {
            if (strstr(info->dlpi_name, "libseeddelta_llama") != nullptr) {
                for (int i = 0; i < info->dlpi_phnum; ++i) {
                    const ElfW(Phdr) &part = info->dlpi_phdr[i];
                    if (part.p_type == PT_LOAD && (part.p_flags & PF_X) != 0) {
                        range_begin = info->dlpi_addr + part.p_vaddr;
                        range_end = info->dlpi_addr + part.p_vaddr + part.p_memsz;
                    }
                }
            }
            return 0;
        },
        nullptr);
    seen = 0;
    fail_at = number;
}

// Allocations since then.
long faults_seen() {
    return seen.load();
}

void *malloc(size_t size) {
    static const auto real = next<void *(*)(size_t)>("malloc");
    return fails(__builtin_return_address(0)) ? nullptr : real(size);
}

void *aligned_alloc(size_t alignment, size_t size) {
    static const auto real = next<void *(*)(size_t, size_t)>("aligned_alloc");
    return fails(__builtin_return_address(0)) ? nullptr : real(alignment, size);
}

int posix_memalign(void **out, size_t alignment, size_t size) {
    static const auto real = next<int (*)(void **, size_t, size_t)>("posix_memalign");
    return fails(__builtin_return_address(0)) ? 12 : real(out, alignment, size);
}
}
