// Counters that threads of one operation write and anyone reads.
#pragma once
#include <atomic>
#include <cstdint>

namespace seeddelta {

inline void count(std::atomic<uint64_t> &counter, int64_t n = 1) {
    counter.fetch_add(static_cast<uint64_t>(n), std::memory_order_relaxed);
}

} // namespace seeddelta
