// y = W x for a seeddelta_ctx. The arithmetic is fixed by docs/reference/format.md, "What is computed": every
// instruction set, thread count and batch shape gives the same bits.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

#include "seeddelta/weight.hpp"

namespace seeddelta {

// What one product met. Set by any thread, never cleared here.
struct ComputeStatus {
    std::atomic<bool> nonfinite_input{false};
    std::atomic<bool> nonfinite_output{false};
    std::atomic<bool> bad_index{false}; // a row or an expert that is not there
};

// Who multiplies what in one product of experts: token t has `used` experts, slot s that of number ids[t, s], and its
// result is row t * used + s of y. The input of a slot is row t * inputs + s mod inputs of x; inputs is 1 when all
// experts of a token read the same x. Strides are in bytes.
// Without ids every matrix multiplies its own rows: n_tokens is that of heads times streams, `used` that of the tokens
// of each, token t is head t mod heads, and the input of a slot is x[t / heads, t mod heads, s].
struct ExpertBatch {
    int64_t n_tokens = 0;
    int64_t used = 0;
    int64_t inputs = 0;
    const uint8_t *ids = nullptr; // int32
    int64_t id_stride = 0;        // between slots
    int64_t token_stride = 0;     // between tokens, of ids
    const float *x = nullptr;
    int64_t x_stride = 0;
    float *y = nullptr;
    int64_t y_stride = 0;
    int64_t heads = 1;         // the rest is of a product without ids
    int64_t head_stride = 0;   // of x
    int64_t stream_stride = 0; // of x

    int64_t pairs() const { return n_tokens * used; }

    // Number of the matrix of a pair (token * used + slot); it may be none that is there.
    int64_t expert_of(int64_t pair) const {
        if (ids == nullptr) {
            return pair / used % heads;
        }
        int32_t id = 0;
        std::memcpy(&id, ids + pair / used * token_stride + pair % used * id_stride, sizeof(id));
        return id;
    }

    const float *input_of(int64_t pair) const {
        const int64_t token = pair / used;
        const int64_t slot = pair % used;
        const int64_t offset = ids == nullptr
                                   ? token / heads * stream_stride + token % heads * head_stride + slot * x_stride
                                   : (token * inputs + slot % inputs) * x_stride;
        return reinterpret_cast<const float *>(reinterpret_cast<const uint8_t *>(x) + offset);
    }
};

// Rotated, quantized activations and the barrier that the threads of one product share. Owned by one llama context,
// which computes one node at a time. Grows, never shrinks.
class Workspace {
public:
    Workspace();
    ~Workspace();
    Workspace(const Workspace &) = delete;
    Workspace &operator=(const Workspace &) = delete;

    // Makes room for n_tokens activations of a product. Not thread safe: call it before the threads start, or let
    // thread 0 do it between the two barriers of seeddelta_compute_threaded.
    void reserve(int64_t n_tokens, const seeddelta_ctx &ctx);
    // The same for a product of experts.
    void reserve(const ExpertBatch &batch, const seeddelta_ctx &ctx);
    // Experts that the last product of experts computed with.
    int64_t experts() const;

    struct Impl;
    Impl &impl() { return *impl_; }

private:
    std::unique_ptr<Impl> impl_;
};

// All nth threads of one product call this with the same arguments but ith. x and y are float32 with the given strides
// in bytes between tokens. With reuse_activations the rotated, quantized x of the previous product of this workspace is
// used again: x, n_in, column_scale, rotation_block, base_seed and scale_groups() must be the same. y must not overlap
// x. Contains a spin barrier: all nth threads must run at the same time. `blocks`, for proc_sparse and one token, has a
// bit for each block of x that is not all 0, [proc_map_bytes]: the others are not read, and the result has the same
// bits.
void seeddelta_compute_threaded(const seeddelta_ctx &ctx, const float *x, int64_t n_tokens, int64_t x_stride_bytes,
                                float *y, int64_t y_stride_bytes, Workspace &workspace, int ith, int nth,
                                bool reuse_activations, ComputeStatus &status, const uint8_t *blocks = nullptr);

// Bytes of scratch that a thread of a product of rows or of experts needs; of looking up rows.
int64_t product_scratch(const seeddelta_ctx &ctx, int64_t n_tokens);
int64_t lookup_scratch(const seeddelta_ctx &ctx);

// The same for the chosen experts of every token; ctx.expert says of which weights. An expert is decoded once however
// many tokens have it. With reuse_activations the ids must be the same, too, and the product before must have had a
// residual if this one has. An id that is no expert gives zeros and status.bad_index.
void seeddelta_compute_experts(const seeddelta_ctx &ctx, const ExpertBatch &batch, Workspace &workspace, int ith,
                               int nth, bool reuse_activations, ComputeStatus &status);

// seeddelta_compute_threaded on the calling thread, for contiguous x [n_tokens, n_in] and y [n_tokens, n_out].
void seeddelta_compute(const seeddelta_ctx &ctx, const float *input, float *output, size_t n_tokens);

// Rows [row_begin, row_end) of the dense matrix that the weight stands for, float32, into out [rows, n_in]. ctx is a
// single matrix.
void seeddelta_dequantize(const seeddelta_ctx &ctx, int64_t row_begin, int64_t row_end, float *out);

// Asks the memory for the first codes that thread `ith` of `nth` reads of byte lanes in row layout. Without waiting for
// them: they arrive while something else is computed. Returns false when there are none.
bool seeddelta_prefetch(const seeddelta_ctx &ctx, int ith, int nth);

} // namespace seeddelta
