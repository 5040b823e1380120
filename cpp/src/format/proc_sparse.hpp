// Residual scheme proc_sparse: only the blocks that a row kept exist, int8 values with a float16 scale a row; the base,
// if there is one, is prng_block inside these blocks and 0 outside. docs/reference/format.md. In seeddelta_ctx:
// residual_size blocks a row, block_map [n_out, proc_map_bytes] one bit a block, residual_vals_i8 [n_out, kept,
// residual_block], residual_scale [n_out]. Procedural weights are made from their coordinates when they are needed,
// never stored.
#pragma once
#include <cstdint>
#include <cstring>

#include "seeddelta/weight.hpp"

namespace seeddelta {

static inline int64_t proc_blocks(const seeddelta_ctx &ctx) {
    return (ctx.n_in + ctx.residual_block - 1) / ctx.residual_block;
}

static inline int64_t proc_map_bytes(const seeddelta_ctx &ctx) {
    return (proc_blocks(ctx) + 7) / 8;
}

// Calls visit(entry, block) for the kept blocks of a row, ascending; entry counts from 0.
template <class Visit>
static inline void for_kept_blocks(const seeddelta_ctx &ctx, int64_t row, Visit &&visit) {
    const int64_t bytes = proc_map_bytes(ctx);
    const uint8_t *map = ctx.block_map + row * bytes;
    int64_t entry = 0;
    for (int64_t at = 0; at < bytes; at += 8) {
        uint64_t bits = 0;
        std::memcpy(&bits, map + at, static_cast<size_t>(bytes - at < 8 ? bytes - at : 8));
        for (; bits != 0; bits &= bits - 1) {
            visit(entry++, at * 8 + __builtin_ctzll(bits));
        }
    }
}

// Scalar definition: the share of one output, before the row scale. q [n_in rounded up to kGroup] and scale are the
// quantized activations, acc what the base is worth before base_scale.
void proc_sparse_dot(const seeddelta_ctx &ctx, int64_t row, const int8_t *q, const float *scale, float &acc,
                     float &res);
// out [n_in] += base and residual of a row.
void proc_sparse_add(const seeddelta_ctx &ctx, int64_t row, float *out);

} // namespace seeddelta
