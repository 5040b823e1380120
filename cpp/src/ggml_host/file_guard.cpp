#include "ggml_host/file_guard.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <mutex>
#include <system_error>

namespace seeddelta {

namespace {

// Ranges are never freed but used again, so that the handler can walk them at any time.
std::atomic<GuardedRange *> ranges{nullptr};
std::mutex registering;
struct sigaction previous_action;
uintptr_t page_size = 4096;

void end_process(int number) {
    struct sigaction standard = {};
    standard.sa_handler = SIG_DFL;
    sigaction(number, &standard, nullptr);
}

// To another library's handler, or to what happens without one. Python's faulthandler reports, puts back the handler
// that it found, which may be this one, and raises the signal anew: that ends the process.
void pass_on(int number, siginfo_t *info, void *context) {
    if (previous_action.sa_handler == SIG_DFL || previous_action.sa_handler == SIG_IGN) {
        end_process(number);
        if (info->si_code <= 0) { // sent by a process; what touched a page touches it again
            static_cast<void>(raise(number));
        }
        return;
    }
    if ((previous_action.sa_flags & SA_SIGINFO) != 0) {
        previous_action.sa_sigaction(number, info, context);
    } else {
        previous_action.sa_handler(number);
    }
    sigset_t pending;
    if (sigpending(&pending) == 0 && sigismember(&pending, number) == 1) {
        end_process(number);
    }
}

// The rest of the mapping becomes zeros: what is behind a page that is gone is gone, too. Calls what a handler may
// call; mmap is not on POSIX's list, but a plain system call everywhere.
void on_bus_error(int number, siginfo_t *info, void *context) {
    const int error = errno;
    const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
    bool ours = false;
    for (GuardedRange *range = ranges.load(std::memory_order_acquire); info->si_code > 0 && range != nullptr;
         range = range->next) {
        const uintptr_t begin = range->begin.load(std::memory_order_acquire);
        const uintptr_t end = range->end.load(std::memory_order_relaxed);
        if (begin == 0 || address < begin || address >= end) {
            continue;
        }
        range->truncated.store(true, std::memory_order_release);
        const uintptr_t page = address & ~(page_size - 1);
        ours = mmap(reinterpret_cast<void *>(page), end - page, PROT_READ, // NOLINT(performance-no-int-to-ptr)
                    MAP_PRIVATE | MAP_FIXED | MAP_ANONYMOUS, -1, 0) != MAP_FAILED ||
               ours;
    }
    if (!ours) {
        pass_on(number, info, context);
    }
    errno = error;
}

// Also when somebody else's handler has come before it since.
void install() {
    struct sigaction found = {};
    sigaction(SIGBUS, nullptr, &found);
    if ((found.sa_flags & SA_SIGINFO) != 0 && found.sa_sigaction == &on_bus_error) {
        return;
    }
    previous_action = found;
    struct sigaction ours = {};
    ours.sa_sigaction = &on_bus_error;
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&ours.sa_mask);
    sigaction(SIGBUS, &ours, nullptr);
}

GuardedRange *add_range(uintptr_t begin, uintptr_t end) {
    const std::scoped_lock lock(registering);
    page_size = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    install();
    GuardedRange *range = ranges.load();
    while (range != nullptr && range->begin.load() != 0) {
        range = range->next;
    }
    if (range == nullptr) {
        range = new GuardedRange;
        range->next = ranges.load();
        ranges.store(range, std::memory_order_release);
    }
    range->truncated.store(false);
    range->end.store(end);
    range->begin.store(begin, std::memory_order_release);
    return range;
}

} // namespace

FileGuard::FileGuard(int fd, const void *address, size_t length) {
    fd_ = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (fd_ < 0 || !stamp_of(fd_, stamp_)) {
        const int error = errno;
        if (fd_ >= 0) {
            close(fd_);
        }
        throw std::system_error(error, std::generic_category(), "the file cannot be watched");
    }
    const auto begin = reinterpret_cast<uintptr_t>(address);
    range_ = add_range(begin, begin + length);
}

FileGuard::~FileGuard() {
    range_->begin.store(0);
    close(fd_);
}

bool FileGuard::stamp_of(int fd, Stamp &stamp) noexcept {
    struct stat status = {};
    if (fstat(fd, &status) != 0) {
        return false;
    }
    stamp = {status.st_size, status.st_mtim.tv_sec, status.st_mtim.tv_nsec};
    return true;
}

bool FileGuard::intact() const noexcept {
    Stamp now;
    return !range_->truncated.load(std::memory_order_acquire) && stamp_of(fd_, now) && now == stamp_;
}

} // namespace seeddelta
