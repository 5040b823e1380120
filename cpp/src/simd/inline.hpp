// Inlining of the words that the tile kernels are made of.
#pragma once
#include <utility>

// Under a sanitizer each word stays a function: inlined with its checks a unit took GCC seven minutes.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SEEDDELTA_INLINE inline
#define SEEDDELTA_INLINE_LAMBDA
#else
#define SEEDDELTA_INLINE inline __attribute__((always_inline))
#define SEEDDELTA_INLINE_LAMBDA __attribute__((always_inline))
#endif

namespace seeddelta {
namespace {

// f(0), f(1), ... f(N - 1) without a loop: GCC keeps elements of an array in registers when it never saw one.
template <int N, class F>
SEEDDELTA_INLINE void unrolled(F &&f) {
    [&]<int... I>(std::integer_sequence<int, I...>)
        SEEDDELTA_INLINE_LAMBDA { (f(I), ...); }(std::make_integer_sequence<int, N>{});
}

} // namespace
} // namespace seeddelta
