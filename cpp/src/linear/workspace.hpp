// Activations of one product in rotated, quantized form, and the barrier of its threads.
#pragma once
#include <cstdlib>
#include <cstring>
#include <new>

#include "gating/event.hpp"
#include "linear/spin_barrier.hpp"
#include "seeddelta/compute.hpp"
#include "simd/kernel_table.hpp"

namespace seeddelta {

// 64-byte aligned, grows only.
template <class T>
struct Buffer {
    T *data = nullptr;
    int64_t capacity = 0;
    Buffer() = default;
    Buffer(const Buffer &) = delete;
    Buffer &operator=(const Buffer &) = delete;
    ~Buffer() { std::free(data); }
    T *reserve(int64_t n) {
        if (n > capacity) {
            const size_t bytes = (static_cast<size_t>(n) * sizeof(T) + 63) / 64 * 64;
            void *fresh = std::aligned_alloc(64, bytes);
            if (fresh == nullptr) {
                throw std::bad_alloc();
            }
            std::free(data);
            data = static_cast<T *>(fresh);
            capacity = n;
        }
        return data;
    }
};

struct Workspace::Impl : SpinBarrier {
    Buffer<int8_t> q;
    Buffer<float> scale;
    Buffer<int32_t> bias;
    Buffer<float> p; // dictionary times x
    // of experts: pairs of token and slot by expert, where each expert's begin, the experts that have any, their inputs
    Buffer<int64_t> pairs, begin, chosen;
    Buffer<float> x;
    int64_t n_chosen = 0;
    // of columns: units of one token (or of one token a thread), inputs of a prompt with 0 for inactive units; units
    // of all tokens
    Buffer<int32_t> index;
    Buffer<float> value, masked;
    int64_t listed = 0;
    std::atomic<int64_t> active{0};
    Buffer<int32_t> every;  // 0, 1, 2, ...
    Buffer<uint64_t> bits;  // the units of one token
    Buffer<uint8_t> blocks; // of proc_sparse: blocks of 32 that have any of them, then those of 64
    bool changes = false;   // they are computed with other values than the token's: those of the first thread's list
    Buffer<double> squares; // of events, for a check: sums a thread
    EventMode mode = EventMode::full;
    std::atomic<bool> all_finite{true};
};

inline int64_t padded(int64_t n_in) {
    return (n_in + kGroup - 1) / kGroup * kGroup;
}

// What a thread has been lent (linear/arenas.hpp).
struct Lent {
    uint8_t *data = nullptr;
    int64_t bytes = 0;
};

inline Lent &lent_scratch() {
    thread_local Lent lent;
    return lent;
}

// Scratch of the calling thread, 64-byte aligned: what it has been lent, which is enough, or else its own, which grows.
[[gnu::returns_nonnull]] inline uint8_t *thread_scratch(int64_t bytes) {
    if (bytes <= lent_scratch().bytes) {
        return lent_scratch().data;
    }
    thread_local Buffer<uint8_t> scratch;
    // NOLINTNEXTLINE(clang-analyzer-unix.Malloc): the analyzer ends a thread's variable with its scope
    return scratch.reserve(bytes < 1 ? 1 : bytes);
}

// Scales, rotates and quantizes one token's x to row `token` of the workspace. `rotated` is scratch of n_in floats.
// Returns false when x has NaN or infinity.
inline bool prepare_token(const seeddelta_ctx &ctx, const float *x, int64_t token, Workspace::Impl &w, float *rotated) {
    const KernelTable &k = kernels();
    const int64_t stride = padded(ctx.n_in);
    if (ctx.column_factor != nullptr) {
        for (int64_t i = 0; i < ctx.n_in; ++i) {
            rotated[i] = x[i] * ctx.column_factor[i];
        }
        x = rotated;
    }
    if (ctx.rotation_block > 1) {
        k.linear.rotate(x, rotated, ctx.n_in, ctx.rotation_block, ctx.base_seed);
        x = rotated;
    }
    return k.linear.quantize(x, ctx.n_in, ctx.scale_groups(), w.q.data + token * stride,
                             w.scale.data + token * stride / kGroup, w.bias.data + token * stride / kGroup);
}

} // namespace seeddelta
