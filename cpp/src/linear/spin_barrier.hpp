// The barrier of the threads of one operation.
#pragma once
#include <atomic>
#include <cstdint>
#include <thread>

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

namespace seeddelta {

inline constexpr int kSpins = 2000;

inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("isb"); // waits a few ten cycles; yield is a no-op on most cores
#endif
}

struct SpinBarrier {
    std::atomic<int> arrived{0};
    std::atomic<uint32_t> generation{0};

    // True for the last thread of the product to arrive, which sees what the others have written; nobody waits. Before
    // the next use all must have met elsewhere.
    bool last(int nth) {
        if (nth == 1) {
            return true;
        }
        if (arrived.fetch_add(1, std::memory_order_acq_rel) + 1 != nth) {
            return false;
        }
        arrived.store(0, std::memory_order_relaxed);
        return true;
    }

    // Every thread of the product arrives; nobody leaves before all have.
    void barrier(int nth) {
        if (nth == 1) {
            return;
        }
        const uint32_t seen = generation.load(std::memory_order_acquire);
        if (arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == nth) {
            arrived.store(0, std::memory_order_relaxed);
            generation.fetch_add(1, std::memory_order_release);
            return;
        }
        // Spin while the others are surely running, then let the scheduler run them: with more threads than free cores
        // a spinning thread would keep the one it waits for from running for a whole time slice.
        for (int spins = 0; generation.load(std::memory_order_acquire) == seen; ++spins) {
            if (spins < kSpins) {
                relax();
            } else {
                std::this_thread::yield();
            }
        }
    }
};

} // namespace seeddelta
