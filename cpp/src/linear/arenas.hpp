// Scratch of the threads that compute a graph. It is made before any of them runs: nothing is allocated while they do.
#pragma once
#include <algorithm>
#include <atomic>
#include <deque>
#include <thread>
#include <utility>

#include "linear/workspace.hpp"

namespace seeddelta {

class Arenas {
public:
    // Makes room for so many bytes a thread. Throws std::bad_alloc; what was there stays. Before the threads start.
    void reserve(int64_t bytes) {
        const auto threads = static_cast<size_t>(wanted_.load(std::memory_order_relaxed));
        if (bytes <= bytes_ && threads <= arenas_.size()) {
            return;
        }
        bytes = std::max(bytes, bytes_);
        for (Buffer<uint8_t> &arena : arenas_) {
            arena.reserve(bytes);
        }
        while (arenas_.size() < threads) {
            arenas_.emplace_back();
            try {
                arenas_.back().reserve(bytes);
            } catch (...) {
                arenas_.pop_back();
                throw;
            }
        }
        bytes_ = bytes;
    }

    // How many of `nth` threads work; the others have nothing to do, this time. ggml says how many there are only when
    // they run.
    int workers(int nth) {
        if (nth > wanted_.load(std::memory_order_relaxed)) {
            wanted_.store(nth, std::memory_order_relaxed);
        }
        return std::min(nth, static_cast<int>(arenas_.size()));
    }

    // Threads that the next reserve() makes room for.
    int wanted() const { return wanted_.load(std::memory_order_relaxed); }

    // While it lives the calling thread works with arena `ith`.
    class Loan {
    public:
        Loan(const Arenas &arenas, int ith)
            : before_(std::exchange(lent_scratch(), {arenas.arenas_[static_cast<size_t>(ith)].data, arenas.bytes_})) {}
        ~Loan() { lent_scratch() = before_; }
        Loan(const Loan &) = delete;
        Loan &operator=(const Loan &) = delete;

    private:
        Lent before_;
    };

private:
    std::deque<Buffer<uint8_t>> arenas_;
    int64_t bytes_ = 0; // of each
    std::atomic<int> wanted_{std::max(1, static_cast<int>(std::thread::hardware_concurrency()))};
};

} // namespace seeddelta
