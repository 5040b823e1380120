// What every instruction set provides for products with matrices.
#pragma once
#include <algorithm>
#include <cstdint>

#include "kinds/kinds.hpp"
#include "seeddelta/columns.hpp"
#include "seeddelta/weight.hpp"

namespace seeddelta {

// Rotated and quantized activations of several tokens.
struct Activations {
    int64_t n_tokens;
    int64_t n_in;
    int64_t stride;      // int8 a token: n_in rounded up to a multiple of kGroup; the padding is 0
    const int8_t *q;     // [n_tokens, stride]
    const float *scale;  // [n_tokens, stride / kGroup]
    const int32_t *bias; // [n_tokens, stride / kGroup]: -kValueBias times the sum of a group's q: what kernels of
                         // unsigned values begin with
    const float *x;      // what went in, float32, for the residuals
    int64_t x_stride;    // in floats
    const float *p;      // [n_tokens, dictionary_size] with a codebook: dictionary times x
    const int64_t *places = nullptr; // [n_tokens] of the outputs in y; null: 0, 1, 2, ...
    // proc_sparse, one token: a bit for each block that may hold an input other than 0, as in the weight's map; null:
    // all
    const uint8_t *blocks = nullptr;
    bool packed = false; // the panel has these activations from the call before, for a matrix of as many columns

    // Of `group` and the one that shares its scale, if there is one.
    [[gnu::always_inline]] int32_t shared_bias(int64_t token, int64_t group) const {
        const int64_t groups = stride / kGroup;
        const int32_t *first = bias + token * groups + group;
        return group + 1 < groups ? first[0] + first[1] : first[0];
    }
    int64_t place(int64_t token) const { return places == nullptr ? token : places[token]; }
};

struct LinearKernels {
    // Signs and Hadamard transform of one row, into `out`, which may be x. block divides n.
    void (*rotate)(const float *x, float *out, int64_t n, uint32_t block, uint64_t seed);
    void (*rotate_back)(float *row, int64_t n, uint32_t block, uint64_t seed); // the inverse, in place
    // One token: int8 values, and for each group its scale and its bias (Activations); 1 or kScaleGroups of them after
    // each other have the same scale. q has n rounded up to kGroup entries. Returns false when x has a NaN or an
    // infinity (its group is then all 0).
    bool (*quantize)(const float *x, int64_t n, int64_t scale_groups, int8_t *q, float *scale, int32_t *bias);
    // What the kinds of base and residual compute before the rows (kinds/kinds.hpp), where prepares(ctx). scratch is
    // 64-byte aligned.
    void (*prepare)(const seeddelta_ctx &ctx, const PrepareWork &work, float *scratch);
    // Rows of tiles [tile_begin, tile_end) for all tokens; y has y_stride floats a place (`places`), and the share of
    // the base already where base_in_y(ctx). panel is scratch of panel_bytes(ctx, n_tokens) bytes, 64-byte aligned.
    // Returns false when an output is NaN or infinite.
    bool (*compute)(const seeddelta_ctx &ctx, const Activations &a, int64_t tile_begin, int64_t tile_end,
                    uint8_t *panel, float *y, int64_t y_stride);
    // Outputs [out_begin, out_end) of y, columns.hpp; out_begin is a multiple of kOutputSlice. y is that of all
    // outputs.
    void (*columns_f16)(const ColumnWeight &w, const ActiveSet &s, int64_t out_begin, int64_t out_end, float *y);
    // The same for several tokens, whose inactive inputs are 0.
    void (*columns_f16_batch)(const ColumnWeight &w, const float *x, int64_t n_tokens, int64_t x_stride,
                              int64_t out_begin, int64_t out_end, float *y, int64_t y_stride);
    // Byte lanes: y[o] for outputs [begin, end) of one token, in the rotated domain. begin and end are those of strips,
    // or n_out.
    void (*columns_lanes)(const ColumnWeight &w, const ColumnInput &in, int64_t begin, int64_t end, float *y);
    // The same for all tokens of a, whose x are those of all units (0 where a unit is not active); y has y_stride
    // floats a token. Equal bits.
    void (*columns_lanes_many)(const ColumnWeight &w, const Activations &a, int64_t begin, int64_t end, float *y,
                               int64_t y_stride);
};

// Scalar definitions of the last two.
void columns_lanes_scalar(const ColumnWeight &w, const ColumnInput &in, int64_t begin, int64_t end, float *y);
void columns_lanes_many_scalar(const ColumnWeight &w, const Activations &a, int64_t begin, int64_t end, float *y,
                               int64_t y_stride);

// Many tokens with lanes (lanes_many.hpp): columns that are decoded together, tokens that are multiplied together. With
// 512 columns, a multiple of 4 KiB, the panel and the activations behind it were in each other's way.
inline constexpr int64_t kLanePanelColumns = 640;
inline constexpr int64_t kTokenBatch = 8;

// Scratch of a decoded stretch of columns, and of one block of tokens.
inline constexpr int64_t kLanePanelBytes = kLanePanelColumns * kTileRows;
static inline int64_t token_batch_bytes(int64_t groups) {
    constexpr int64_t a_group = kGroup + static_cast<int64_t>(sizeof(float) + sizeof(int32_t)); // q, scale, bias
    return kTokenBatch * (groups * a_group + kTileRows * static_cast<int64_t>(sizeof(float)));
}

// With matrix registers (lanes_amx.hpp): columns, tokens, and the scratch of all tokens, scales and sums.
inline constexpr int64_t kLaneMatrixColumns = 1024;
inline constexpr int64_t kLaneMatrixTokens = 16;
static inline int64_t lane_matrix_bytes(int64_t groups, int64_t n_tokens) {
    const int64_t blocks = (n_tokens + kLaneMatrixTokens - 1) / kLaneMatrixTokens;
    return kLaneMatrixColumns * kTileRows +
           blocks * kLaneMatrixTokens * (groups + kTileRows) * static_cast<int64_t>(sizeof(float));
}

// Scratch for one thread: a decoded tile, two bytes a value at most, plus slack for whole vectors. With lanes the
// activations of all tokens, in blocks.
static inline int64_t panel_bytes(const seeddelta_ctx &ctx, int64_t n_tokens) {
    const int64_t tile = (ctx.n_in + 2 * kGroup) * kTileRows * 2 + 256;
    if (ctx.base != BaseKind::lanes) {
        return tile;
    }
    const int64_t packed =
        kLanePanelBytes + (n_tokens + kTokenBatch - 1) / kTokenBatch * token_batch_bytes(ctx.n_groups());
    const int64_t matrix = lane_matrix_bytes(ctx.n_groups(), n_tokens);
    return std::max({packed, matrix, tile});
}

} // namespace seeddelta
