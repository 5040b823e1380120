// Drives one product: activations once, then every thread its own row tiles.
#include "seeddelta/compute.hpp"

#include <algorithm>
#include <cstring>

#include "format/float16.hpp"
#include "format/lanes.hpp"
#include "format/proc_sparse.hpp"
#include "format/rotation.hpp"
#include "linear/workspace.hpp"
#include "simd/prefetch.hpp"

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

static int64_t prepare_floats(const seeddelta_ctx &ctx) {
    int64_t floats = 0;
    Kinds::both(ctx, [&]<class K>() {
        if constexpr (K::kPrepares) {
            floats = std::max(floats, K::prepare_floats(ctx));
        }
    });
    return floats;
}

// What the kinds of base and residual compute before the rows; no other weight can use it.
static void prepare_weight(const seeddelta_ctx &ctx, PrepareWork work, Workspace::Impl &w) {
    work.p = w.p.data;
    auto *scratch =
        reinterpret_cast<float *>(thread_scratch(prepare_floats(ctx) * static_cast<int64_t>(sizeof(float))));
    kernels().linear.prepare(ctx, work, scratch);
}

// Calls use(matrix, begin, end, row) for tiles of one code after the other: [begin, end) of a matrix whose first row is
// `row` of ctx.
template <class Use>
static void each_run(const seeddelta_ctx &ctx, int64_t tile_begin, int64_t tile_end, const Use &use) {
    if (ctx.runs == nullptr) {
        use(ctx, tile_begin, tile_end, 0);
        return;
    }
    const TileRun *last = ctx.runs + ctx.n_runs;
    const TileRun *run =
        std::upper_bound(ctx.runs, last, tile_begin, [](int64_t tile, const TileRun &one) { return tile < one.end; });
    for (; run != last && run->begin < tile_end; ++run) {
        use(ctx.rows_of(*run), std::max(tile_begin, run->begin) - run->begin, std::min(tile_end, run->end) - run->begin,
            run->begin * kTileRows);
    }
}

int64_t product_scratch(const seeddelta_ctx &ctx, int64_t n_tokens) {
    const int64_t floats = std::max(ctx.n_in, prepare_floats(ctx)); // of prepare and of prepare_weight
    return std::max(floats * static_cast<int64_t>(sizeof(float)), panel_bytes(ctx, n_tokens));
}

static int64_t lookup_floats(const seeddelta_ctx &ctx) {
    int64_t floats = 0;
    Kinds::base(ctx.base, [&]<class K>() { floats = K::row_floats(ctx); });
    return floats;
}

int64_t lookup_scratch(const seeddelta_ctx &ctx) {
    return lookup_floats(ctx) * static_cast<int64_t>(sizeof(float)) + 2 * ctx.n_in;
}

void seeddelta_compute_threaded(const seeddelta_ctx &ctx, const float *x, int64_t n_tokens, int64_t x_stride_bytes,
                                float *y, int64_t y_stride_bytes, Workspace &workspace, int ith, int nth,
                                bool reuse_activations, ComputeStatus &status, const uint8_t *blocks) {
    Workspace::Impl &w = workspace.impl();
    const int64_t x_stride = x_stride_bytes / static_cast<int64_t>(sizeof(float));
    const int64_t y_stride = y_stride_bytes / static_cast<int64_t>(sizeof(float));
    if (!reuse_activations || prepares(ctx)) {
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
        if (prepares(ctx)) {
            prepare_weight(ctx,
                           {.x = x,
                            .n_tokens = n_tokens,
                            .x_stride = x_stride,
                            .y = y,
                            .y_stride = y_stride,
                            .ith = ith,
                            .nth = nth},
                           w);
        }
        w.barrier(nth);
    }
    if (!w.all_finite.load(std::memory_order_relaxed)) {
        status.nonfinite_input.store(true, std::memory_order_relaxed);
    }
    Activations a{n_tokens, ctx.n_in, padded(ctx.n_in), w.q.data, w.scale.data, w.bias.data,
                  x,        x_stride, w.p.data,         nullptr,  blocks};
    const int64_t tiles = ctx.n_tiles();
    uint8_t *panel = thread_scratch(panel_bytes(ctx, n_tokens));
    each_run(ctx, tiles * ith / nth, tiles * (ith + 1) / nth,
             [&](const seeddelta_ctx &part, int64_t begin, int64_t end, int64_t row) {
                 if (!kernels().linear.compute(part, a, begin, end, panel, y + row, y_stride)) {
                     status.nonfinite_output.store(true, std::memory_order_relaxed);
                 }
                 a.packed = true;
             });
}

// Codes are asked for as far as the second tile begins, and a little more.
static constexpr int64_t kAhead = 2048;

bool seeddelta_prefetch(const seeddelta_ctx &ctx, int ith, int nth) {
    if (ctx.base != BaseKind::lanes) {
        return false;
    }
    const int64_t tiles = ctx.n_tiles();
    const int64_t first = tiles * ith / nth;
    const int64_t last = tiles * (ith + 1) / nth;
    bool some = false;
    each_run(ctx, first, last, [&](const seeddelta_ctx &part, int64_t begin, int64_t end, int64_t) {
        if (!some && begin < end) {
            prefetch_near(part.codes + begin * part.tile_bytes(),
                          std::min(part.tile_bytes() + kAhead, (end - begin) * part.tile_bytes()));
            some = true;
        }
    });
    return some;
}

void seeddelta_compute(const seeddelta_ctx &ctx, const float *input, float *output, size_t n_tokens) {
    Workspace workspace;
    ComputeStatus status;
    seeddelta_compute_threaded(ctx, input, static_cast<int64_t>(n_tokens),
                               ctx.n_in * static_cast<int64_t>(sizeof(float)), output,
                               ctx.n_out * static_cast<int64_t>(sizeof(float)), workspace, 0, 1, false, status);
}

// The values of a row of the base, out [n_in].
static void base_row(const seeddelta_ctx &ctx, int64_t row, float *out, float *scratch) {
    auto *values = reinterpret_cast<int16_t *>(scratch + lookup_floats(ctx));
    if (ctx.base == BaseKind::lanes) {
        lanes_row(ctx, row, values);
    } else {
        std::fill_n(out, ctx.n_in, 0.0F);
        if (ctx.scheme != ResidualScheme::proc_sparse) { // whose base is in the kept blocks only
            Kinds::base(ctx.base, [&]<class K>() { K::row(ctx, row, out, scratch); });
        }
        return;
    }
    for (int64_t i = 0; i < ctx.n_in; ++i) {
        out[i] = static_cast<float>(values[i]);
    }
}

static void multiply_row(float *row, int64_t n, float factor) {
    for (int64_t i = 0; i < n; ++i) {
        row[i] *= factor;
    }
}

void seeddelta_dequantize(const seeddelta_ctx &ctx, int64_t row_begin, int64_t row_end, float *out) {
    if (ctx.runs != nullptr) {
        each_run(ctx, row_begin / kTileRows, (row_end + kTileRows - 1) / kTileRows,
                 [&](const seeddelta_ctx &part, int64_t, int64_t, int64_t first) {
                     const int64_t begin = std::max(row_begin - first, int64_t{0});
                     const int64_t end = std::min(row_end - first, part.n_out);
                     seeddelta_dequantize(part, begin, end, out + (first + begin - row_begin) * ctx.n_in);
                 });
        return;
    }
    auto *scratch = reinterpret_cast<float *>(thread_scratch(lookup_scratch(ctx)));
    for (int64_t row = row_begin; row < row_end; ++row, out += ctx.n_in) {
        base_row(ctx, row, out, scratch);
        multiply_row(out, ctx.n_in, ctx.base_scale);
        if (ctx.rotation_block > 1) {
            rotate_back(out, ctx.n_in, ctx.rotation_block, ctx.base_seed);
        }
        if (ctx.column_factor != nullptr) {
            for (int64_t i = 0; i < ctx.n_in; ++i) {
                out[i] *= ctx.column_factor[i];
            }
        }
        if (ctx.scheme == ResidualScheme::proc_sparse) {
            proc_sparse_add(ctx, row, out);
        } else {
            Kinds::scheme(ctx.scheme, [&]<class K>() { K::add(ctx, row, out); });
        }
        multiply_row(out, ctx.n_in,
                     ctx.row_scale_f16 != nullptr ? half_to_float(ctx.row_scale_f16[row]) : ctx.row_scale_f32[row]);
    }
}

} // namespace seeddelta
