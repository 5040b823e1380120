// y = W x for a seeddelta_ctx. The arithmetic is fixed by docs/format.md, "What is computed": every instruction set, thread
// count and batch shape gives the same bits.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "seeddelta/weight.hpp"

namespace seeddelta {

// What one product met. Set by any thread, never cleared here.
struct ComputeStatus {
    std::atomic<bool> nonfinite_input{false};
    std::atomic<bool> nonfinite_output{false};
};

// Rotated, quantised activations and the barrier that the threads of one product share. Owned by one llama context, which
// computes one node at a time. Grows, never shrinks.
class Workspace {
public:
    Workspace();
    ~Workspace();
    Workspace(const Workspace &) = delete;
    Workspace &operator=(const Workspace &) = delete;

    // Makes room for n_tokens activations of a product. Not thread safe: call it before the threads start, or let
    // thread 0 do it between the two barriers of seeddelta_compute_threaded.
    void reserve(int64_t n_tokens, const seeddelta_ctx &ctx);

    struct Impl;
    Impl &impl() { return *impl_; }

private:
    std::unique_ptr<Impl> impl_;
};

// All nth threads of one product call this with the same arguments but ith. x and y are float32 with the given strides
// in bytes between tokens. With reuse_activations the rotated, quantised x of the previous product of this workspace is
// used again: x, n_in, column_scale, rotation_block and base_seed must be the same. y must not overlap x. Contains a spin barrier:
// all nth threads must run at the same time.
void seeddelta_compute_threaded(const seeddelta_ctx &ctx, const float *x, int64_t n_tokens, int64_t x_stride_bytes, float *y,
                                int64_t y_stride_bytes, Workspace &workspace, int ith, int nth, bool reuse_activations,
                                ComputeStatus &status);

// The same on the calling thread, for contiguous x [n_tokens, n_in] and y [n_tokens, n_out].
void seeddelta_compute(const seeddelta_ctx &ctx, const float *input, float *output, size_t n_tokens);

// Rows [row_begin, row_end) of the dense matrix that the weight stands for, float32, into out [rows, n_in].
void seeddelta_dequantize(const seeddelta_ctx &ctx, int64_t row_begin, int64_t row_end, float *out);

} // namespace seeddelta
