// Static parallel loop for the encoders. Results never depend on the number of threads: a body owns its index.
#pragma once
#include <cstdint>
#include <functional>

namespace seeddelta {

// Calls body(index, worker) for index in [0, n). threads <= 0 means all processors. Indices are handed out one by one,
// in order. The first exception is thrown again on the calling thread, after all workers have stopped.
void parallel_for(int64_t n, int threads, const std::function<void(int64_t index, int worker)> &body);

// threads, or the number of processors that this process may use when threads <= 0; at most n, at least 1.
int worker_count(int64_t n, int threads);

} // namespace seeddelta
