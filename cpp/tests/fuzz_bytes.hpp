// Numbers and arrays from the bytes that a fuzzer gives; zeros once they are used up.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "seeddelta/lane_code.hpp"

namespace seeddelta {

class FuzzBytes {
public:
    FuzzBytes(const uint8_t *data, size_t size) : data_(data), left_(size) {}

    template <class T>
    T value() {
        T v{};
        take(&v, sizeof(T));
        return v;
    }
    int64_t between(int64_t low, int64_t high) { // both included, at most 65536 apart
        return low + value<uint16_t>() % (high - low + 1);
    }
    bool flag() { return (value<uint8_t>() & 1U) != 0; }
    float real(float low, float high) {
        return low + static_cast<float>(value<uint16_t>()) / 65535.0F * (high - low); // both included
    }
    // Exactly n items, so that AddressSanitizer sees the first one behind them. The last bytes come again and again.
    template <class T>
    std::vector<T> array(int64_t n) {
        std::vector<T> v(static_cast<size_t>(n));
        const size_t bytes = v.size() * sizeof(T);
        const size_t given = left_ < bytes ? left_ : bytes;
        auto *out = reinterpret_cast<uint8_t *>(v.data());
        take(out, given);
        for (size_t i = given; given > 0 && i < bytes; ++i) {
            out[i] = out[i - given];
        }
        return v;
    }

    // Any bits, with NaN and infinity, or numbers around 0, many of them 0.
    std::vector<float> floats(int64_t n) {
        if (flag()) {
            return array<float>(n);
        }
        std::vector<float> v;
        for (const int8_t x : array<int8_t>(n)) {
            const int quarters = x / 4; // many are 0
            v.push_back(static_cast<float>(quarters) * 0.25F);
        }
        return v;
    }

private:
    void take(void *out, size_t size) {
        const size_t n = size < left_ ? size : left_;
        if (n > 0) {
            std::memcpy(out, data_, n);
        }
        data_ += n;
        left_ -= n;
    }

    const uint8_t *data_;
    size_t left_;
};

inline void require(bool holds, const char *what) {
    if (!holds) {
        static_cast<void>(std::fprintf(stderr, "%s\n", what));
        std::abort();
    }
}

inline const LaneCode *any_code(FuzzBytes &in) {
    return &lane_codes()[static_cast<size_t>(in.between(0, static_cast<int64_t>(lane_codes().size()) - 1))];
}

} // namespace seeddelta
