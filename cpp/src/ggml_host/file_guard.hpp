// Files that weights are computed from where they are mapped. A file that is made shorter meanwhile would end the
// process with SIGBUS; pages that are gone become zeros instead, and the guard says that nothing computed counts.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace seeddelta {

// A mapping that the handler of SIGBUS knows.
struct GuardedRange {
    std::atomic<uintptr_t> begin{0}; // 0: free
    std::atomic<uintptr_t> end{0};
    std::atomic<bool> truncated{false};
    GuardedRange *next = nullptr;
};

class FileGuard {
public:
    // `fd` is of the mapped file and is duplicated; the mapping must outlive the guard. Throws std::system_error.
    FileGuard(int fd, const void *address, size_t length);
    ~FileGuard();
    FileGuard(const FileGuard &) = delete;
    FileGuard &operator=(const FileGuard &) = delete;

    // False once a page was gone, or when the file has another size or time of change than in the beginning.
    bool intact() const noexcept;

private:
    struct Stamp {
        int64_t size = 0, seconds = 0, nanoseconds = 0;
        bool operator==(const Stamp &) const = default;
    };
    static bool stamp_of(int fd, Stamp &stamp) noexcept;

    int fd_ = -1;
    Stamp stamp_;
    GuardedRange *range_ = nullptr;
};

} // namespace seeddelta
