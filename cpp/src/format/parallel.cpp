#include "format/parallel.hpp"

#include <sched.h>

#include <atomic>
#include <exception>
#include <mutex>

namespace seeddelta {

static int processors() {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set)
                                                        : static_cast<int>(std::thread::hardware_concurrency());
}

int worker_count(int64_t n, int threads) {
    const int64_t wanted = threads > 0 ? threads : processors();
    const int64_t count = wanted < n ? wanted : n;
    return count < 1 ? 1 : static_cast<int>(count);
}

void parallel_for(int64_t n, int threads, const std::function<void(int64_t, int)> &body) {
    const int workers = worker_count(n, threads);
    std::atomic<int64_t> next{0};
    std::exception_ptr error;
    std::mutex error_mutex;
    auto run = [&](int worker) {
        try {
            for (int64_t i = next.fetch_add(1); i < n; i = next.fetch_add(1)) {
                body(i, worker);
            }
        } catch (...) {
            const std::lock_guard lock(error_mutex);
            if (!error) {
                error = std::current_exception();
            }
            next.store(n);
        }
    };
    together(workers, run);
    if (error) {
        std::rethrow_exception(error);
    }
}

} // namespace seeddelta
