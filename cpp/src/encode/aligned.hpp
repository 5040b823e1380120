// Vectors that begin at a multiple of 64 bytes, as the kernels' aligned loads want.
#pragma once
#include <cstddef>
#include <new>
#include <vector>

namespace seeddelta {

template <class T>
struct Aligned64 {
    using value_type = T;
    Aligned64() = default;
    template <class U>
    Aligned64(const Aligned64<U> &) {}
    T *allocate(size_t n) { return static_cast<T *>(::operator new(n * sizeof(T), std::align_val_t{64})); }
    void deallocate(T *p, size_t) { ::operator delete(p, std::align_val_t{64}); }
    bool operator==(const Aligned64 &) const { return true; }
};

template <class T>
using AlignedVector = std::vector<T, Aligned64<T>>;

} // namespace seeddelta
