// Work of several threads.
#pragma once
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace seeddelta {

// Calls `work` with the number of each of so many threads, and waits for all.
template <class Work>
void together(int threads, const Work &work) {
    std::vector<std::jthread> others;
    for (int ith = 1; ith < threads; ++ith) {
        others.emplace_back(work, ith);
    }
    work(0);
}

// A loop whose results never depend on the number of threads: a body owns its index. Calls body(index, worker) for
// index in [0, n). threads <= 0 means all processors. Indices are handed out one by one, in order. The first exception
// is thrown again on the calling thread, after all workers have stopped.
void parallel_for(int64_t n, int threads, const std::function<void(int64_t index, int worker)> &body);

// threads, or the number of processors that this process may use when threads <= 0; at most n, at least 1.
int worker_count(int64_t n, int threads);

} // namespace seeddelta
