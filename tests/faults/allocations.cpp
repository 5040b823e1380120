// Preloaded into a process: counts what our extension allocates when ggml calls it, apart from that what it allocates
// while ggml's threads compute, and lets one allocation fail.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

#include <dlfcn.h>
#include <execinfo.h>

namespace {

struct Range {
    std::atomic<uintptr_t> begin{0}, end{0};
    bool has(const void *address) const {
        const auto at = reinterpret_cast<uintptr_t>(address);
        return at >= begin.load() && at < end.load();
    }
};

Range ranges[4]; // our extension, ggml's library of kernels, the C++ library, ggml's other library
std::atomic<long> seen{0}, computing{0}, fail_at{0};

// True for the one that is to fail.
bool fails(const void *caller) {
    if (!ranges[0].has(caller) && !ranges[2].has(caller)) {
        return false;
    }
    void *frames[48];
    const int n = backtrace(frames, 48);
    bool ours = false;
    for (int i = 0; i < n; ++i) {
        ours = ours || ranges[0].has(frames[i]);
        const bool computes = ranges[1].has(frames[i]);
        if (computes || ranges[3].has(frames[i])) { // who called
            computing += ours && computes ? 1 : 0;
            return ours && ++seen == fail_at.load();
        }
    }
    return false;
}

} // namespace

extern "C" {

void faults_range(int which, uintptr_t begin, uintptr_t end) {
    void *frames[4];
    backtrace(frames, 4); // it allocates the first time
    ranges[which].begin = begin;
    ranges[which].end = end;
}
void faults_arm(long number) {
    seen = 0;
    fail_at = number;
}
long faults_seen() {
    return seen;
}
long faults_computing() {
    return computing;
}

void *aligned_alloc(size_t alignment, size_t size) {
    static auto *const real = reinterpret_cast<void *(*)(size_t, size_t)>(dlsym(RTLD_NEXT, "aligned_alloc"));
    return fails(__builtin_return_address(0)) ? nullptr : real(alignment, size);
}

} // extern "C"

void *operator new(size_t size) {
    void *memory = fails(__builtin_return_address(0)) ? nullptr : std::malloc(size);
    if (memory == nullptr) {
        throw std::bad_alloc();
    }
    return memory;
}
