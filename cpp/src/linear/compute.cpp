// Drives one product: activations once, then every thread its own row tiles.
#include "seeddelta/compute.hpp"
#include "seeddelta/columns.hpp"

#include <algorithm>
#include <cstring>

#include "format/column_trellis.hpp"
#include "format/fht_struct.hpp"
#include "format/lanes.hpp"
#include "format/prng_block.hpp"
#include "format/residual.hpp"
#include "format/rotation.hpp"
#include "format/trellis.hpp"
#include "linear/workspace.hpp"

namespace seeddelta {

Workspace::Workspace() : impl_(std::make_unique<Impl>()) {}
Workspace::~Workspace() = default;

void Workspace::reserve(int64_t n_tokens, const seeddelta_ctx &ctx) {
    const int64_t stride = padded(ctx.n_in);
    impl_->p.reserve(n_tokens * ctx.dictionary_size);
    impl_->q.reserve(n_tokens * stride);
    impl_->scale.reserve(n_tokens * stride / kGroup);
    impl_->bias.reserve(n_tokens * stride / kGroup);
}

static void prepare(const seeddelta_ctx &ctx, const float *x, int64_t n_tokens, int64_t x_stride, Workspace::Impl &w,
                    int ith, int nth) {
    bool all_finite = true;
    auto *rotated = reinterpret_cast<float *>(thread_scratch(ctx.n_in * static_cast<int64_t>(sizeof(float))));
    for (int64_t token = n_tokens * ith / nth; token < n_tokens * (ith + 1) / nth; ++token) {
        all_finite &= prepare_token(ctx, x + token * x_stride, token, w, rotated);
    }
    if (!all_finite) {
        w.all_finite.store(false, std::memory_order_relaxed);
    }
}

// What all rows share and no other weight can use: the dictionary's products, the structured base's share of y.
static void prepare_weight(const seeddelta_ctx &ctx, const float *x, int64_t n_tokens, int64_t x_stride, float *y,
                           int64_t y_stride, Workspace::Impl &w, int ith, int nth) {
    const KernelTable &k = kernels();
    if (ctx.scheme == ResidualScheme::codebook_resid) {
        auto *atom = reinterpret_cast<float *>(thread_scratch(ctx.n_in * static_cast<int64_t>(sizeof(float))));
        const int64_t atoms = ctx.dictionary_size;
        k.dictionary(ctx, atoms * ith / nth, atoms * (ith + 1) / nth, x, n_tokens, x_stride, w.p.data, atom);
    }
    if (ctx.base == BaseKind::fht_struct) {
        const int64_t d = fht_struct_size(ctx.n_in);
        const int64_t blocks = (ctx.n_out + d - 1) / d;
        auto *out = reinterpret_cast<float *>(thread_scratch(2 * d * static_cast<int64_t>(sizeof(float))));
        for (int64_t i = n_tokens * blocks * ith / nth; i < n_tokens * blocks * (ith + 1) / nth; ++i) {
            const int64_t token = i / blocks;
            const int64_t row = i % blocks * d;
            k.fht_struct(ctx.base_seed, i % blocks, ctx.n_in, x + token * x_stride, out, out + d);
            const int64_t rows = ctx.n_out - row < d ? ctx.n_out - row : d;
            std::memcpy(y + token * y_stride + row, out, static_cast<size_t>(rows) * sizeof(float));
        }
    }
}

int64_t product_scratch(const seeddelta_ctx &ctx, int64_t n_tokens) {
    int64_t floats = ctx.n_in; // prepare, and an atom of a dictionary
    if (ctx.base == BaseKind::fht_struct) {
        floats = std::max(floats, 2 * fht_struct_size(ctx.n_in));
    }
    return std::max(floats * static_cast<int64_t>(sizeof(float)), panel_bytes(ctx, n_tokens));
}

static int64_t lookup_floats(const seeddelta_ctx &ctx) {
    return ctx.base == BaseKind::fht_struct ? fht_struct_size(ctx.n_in) : 0;
}

int64_t lookup_scratch(const seeddelta_ctx &ctx) {
    return lookup_floats(ctx) * static_cast<int64_t>(sizeof(float)) + 2 * ctx.n_in;
}

void seeddelta_compute_threaded(const seeddelta_ctx &ctx, const float *x, int64_t n_tokens, int64_t x_stride_bytes,
                                float *y, int64_t y_stride_bytes, Workspace &workspace, int ith, int nth,
                                bool reuse_activations, ComputeStatus &status) {
    Workspace::Impl &w = workspace.impl();
    const int64_t x_stride = x_stride_bytes / static_cast<int64_t>(sizeof(float));
    const int64_t y_stride = y_stride_bytes / static_cast<int64_t>(sizeof(float));
    if (ctx.columns != nullptr) {
        columns_compute_threaded(*ctx.columns, nullptr, x, n_tokens, x_stride_bytes, y, y_stride_bytes, workspace, ith,
                                 nth, false, status);
        return;
    }
    if (!reuse_activations || ctx.base == BaseKind::fht_struct || ctx.scheme == ResidualScheme::codebook_resid) {
        if (ith == 0) {
            workspace.reserve(n_tokens, ctx);
            if (!reuse_activations) {
                w.all_finite.store(true, std::memory_order_relaxed);
            }
        }
        w.barrier(nth);
        if (!reuse_activations) {
            prepare(ctx, x, n_tokens, x_stride, w, ith, nth);
        }
        prepare_weight(ctx, x, n_tokens, x_stride, y, y_stride, w, ith, nth);
        w.barrier(nth);
    }
    if (!w.all_finite.load(std::memory_order_relaxed)) {
        status.nonfinite_input.store(true, std::memory_order_relaxed);
    }
    const Activations a{n_tokens,   ctx.n_in, padded(ctx.n_in), w.q.data, w.scale.data,
                        w.bias.data, x,        x_stride,         w.p.data};
    const int64_t tiles = ctx.n_tiles();
    uint8_t *panel = thread_scratch(panel_bytes(ctx, n_tokens));
    if (!kernels().compute(ctx, a, tiles * ith / nth, tiles * (ith + 1) / nth, panel, y, y_stride)) {
        status.nonfinite_output.store(true, std::memory_order_relaxed);
    }
}

bool seeddelta_prefetch(const seeddelta_ctx &ctx, int ith, int nth) {
    if (ctx.code_bytes() == nullptr || ctx.columns != nullptr) {
        return false;
    }
    const int64_t tiles = ctx.n_tiles();
    const int64_t first = tiles * ith / nth;
    const int64_t last = tiles * (ith + 1) / nth;
    const int64_t mine = (last - first) * ctx.tile_bytes();
    const int64_t lead = std::min(codes_lead(ctx.tile_bytes()), kNearBytes);
    const int64_t bytes = std::min(lead, mine);
    const uint8_t *codes = ctx.code_bytes() + first * ctx.tile_bytes();
    for (int64_t at = 0; at < bytes; at += kLineBytes) {
        __builtin_prefetch(codes + at, 0, 2);
    }
    return bytes > 0;
}

void seeddelta_compute(const seeddelta_ctx &ctx, const float *input, float *output, size_t n_tokens) {
    Workspace workspace;
    ComputeStatus status;
    seeddelta_compute_threaded(ctx, input, static_cast<int64_t>(n_tokens),
                               ctx.n_in * static_cast<int64_t>(sizeof(float)), output,
                               ctx.n_out * static_cast<int64_t>(sizeof(float)), workspace, 0, 1, false, status);
}

void seeddelta_dequantize(const seeddelta_ctx &ctx, int64_t row_begin, int64_t row_end, float *out) {
    if (ctx.columns != nullptr) {
        columns_dequantize(*ctx.columns, row_begin, row_end, out);
        return;
    }
    auto *scratch = reinterpret_cast<float *>(thread_scratch(lookup_scratch(ctx)));
    auto *values = reinterpret_cast<int16_t *>(scratch + lookup_floats(ctx));
    const bool sparse = ctx.scheme == ResidualScheme::proc_sparse; // its base is in the kept blocks only
    std::memset(values, 0, static_cast<size_t>(ctx.n_in) * sizeof(int16_t));
    for (int64_t row = row_begin; row < row_end; ++row, out += ctx.n_in) {
        if (ctx.base == BaseKind::trellis) {
            trellis_row(ctx, row, values);
        } else if (ctx.base == BaseKind::lanes) {
            lanes_row(ctx, row, values);
        } else if (ctx.base == BaseKind::prng_block && !sparse) {
            prng_block_row(ctx, row, values);
        }
        for (int64_t i = 0; i < ctx.n_in; ++i) {
            out[i] = static_cast<float>(values[i]) * ctx.base_scale;
        }
        if (ctx.base == BaseKind::fht_struct) {
            fht_struct_row(ctx.base_seed, row, ctx.n_in, out, scratch);
            for (int64_t i = 0; i < ctx.n_in; ++i) {
                out[i] *= ctx.base_scale;
            }
        }
        if (ctx.rotation_block > 1) {
            rotate_back(out, ctx.n_in, ctx.rotation_block, ctx.base_seed);
        }
        if (ctx.column_factor != nullptr) {
            for (int64_t i = 0; i < ctx.n_in; ++i) {
                out[i] *= ctx.column_factor[i];
            }
        }
        if (sparse) {
            proc_sparse_add(ctx, row, out);
        } else {
            residual_add(ctx, row, out);
        }
        const float row_scale =
            ctx.row_scale_f16 != nullptr ? half_to_float(ctx.row_scale_f16[row]) : ctx.row_scale_f32[row];
        for (int64_t i = 0; i < ctx.n_in; ++i) {
            out[i] *= row_scale;
        }
    }
}

} // namespace seeddelta
