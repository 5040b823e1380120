// Counters that threads of one operation write and anyone reads.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>

namespace seeddelta {

inline void count(std::atomic<uint64_t> &counter, int64_t n = 1) {
    counter.fetch_add(static_cast<uint64_t>(n), std::memory_order_relaxed);
}

// One for each member of an enumeration, whose last one is their number, n.
template <class Count>
class Counters {
public:
    static constexpr size_t kSize = static_cast<size_t>(Count::n);

    Counters() = default;
    Counters(const Counters &other) { *this += other; }
    Counters &operator=(const Counters &other) {
        for (size_t i = 0; i < kSize && this != &other; ++i) {
            values_[i].store(other.at(i), std::memory_order_relaxed);
        }
        return *this;
    }
    Counters &operator+=(const Counters &other) {
        for (size_t i = 0; i < kSize; ++i) {
            count(values_[i], static_cast<int64_t>(other.at(i)));
        }
        return *this;
    }
    std::atomic<uint64_t> &operator[](Count of) { return values_[static_cast<size_t>(of)]; }
    uint64_t operator[](Count of) const { return at(static_cast<size_t>(of)); }
    uint64_t at(size_t i) const { return values_[i].load(std::memory_order_relaxed); }

private:
    std::array<std::atomic<uint64_t>, kSize> values_{};
};

} // namespace seeddelta
