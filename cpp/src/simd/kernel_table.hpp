// What every instruction set provides. One table a unit; the scalar table is the definition the others are tested
// against.
#pragma once
#include <cstdint>

#include "simd/attention_kernels.hpp"
#include "seeddelta/columns.hpp"
#include "seeddelta/weight.hpp"

namespace seeddelta {

// Rotated and quantised activations of several tokens.
struct Activations {
    int64_t n_tokens;
    int64_t n_in;
    int64_t stride;     // int8 a token: n_in rounded up to a multiple of kGroup; the padding is 0
    const int8_t *q;    // [n_tokens, stride]
    const float *scale; // [n_tokens, stride / kGroup]
    const int32_t *bias; // [n_tokens, stride / kGroup]: -kValueBias times the sum of a group's q: what kernels of
                         // unsigned values begin with
    const float *x;     // what went in, float32, for the residuals
    int64_t x_stride;   // in floats
    const float *p;     // [n_tokens, dictionary_size] with a codebook: dictionary times x
    const int64_t *places = nullptr; // [n_tokens] of the outputs in y; null: 0, 1, 2, ...

    int64_t place(int64_t token) const { return places == nullptr ? token : places[token]; }
};

// One Viterbi search (encode/viterbi.hpp has the definition).
struct ViterbiTask {
    int state_bits;
    int step_bits;
    int values_per_step;
    int error_shift;
    const int16_t *values[2]; // [2^state_bits] values of each state, for the first and second column of a step
    const int16_t *target;    // [steps * values_per_step] target * weight, rounded, saturated
    const int16_t *weight;    // [steps * values_per_step], 1 .. 595
    int64_t steps;
    int64_t start_state; // the state before the first step; -1: any
    int64_t end_group;   // low state_bits - step_bits bits of the last state; -1: any
    uint16_t *cost[2];   // [2^state_bits] each
    uint16_t *best;      // [2^(state_bits - step_bits)]
    uint8_t *back;       // [steps, 2^(state_bits - step_bits)]
    uint16_t *states;    // out: [steps]
};

// Rows of one search of the lane code: two tiles.
inline constexpr int64_t kSearchRows = 32;
inline constexpr int64_t kLaneStates = 4096;
inline constexpr int64_t kLaneEnds = 256;

// What one step of the lane code emits.
struct LaneStep {
    int values;               // 0, 1 or 2
    const uint16_t *level[2]; // [256 ends, 16 c2]: kSearchRows times the index into `levels` of the value
};

// One search of the lane code (encode/lane_search.hpp has the definition). Arrays are 64-byte aligned.
struct LaneSearchTask {
    const LaneStep *emitted; // [steps]
    int64_t steps;
    const int16_t *levels; // [n_levels] values that states have
    int64_t n_levels;
    int error_shift;
    const int16_t *target; // [values of all steps, kSearchRows] target * weight, rounded, saturated
    const int16_t *weight; // [values of all steps]; times any level below 2^15
    const int16_t *start;  // [kSearchRows] the end before the first step; null: any
    int16_t *level_cost;   // scratch: [2, n_levels, kSearchRows]
    int16_t *before;       // scratch: [kLaneEnds, kSearchRows]
    int16_t *cost;         // out: [kLaneEnds, kSearchRows] after the last step
    int32_t *total;        // out: [kSearchRows] what was taken off the costs on the way
    uint8_t *back;         // out: [steps, kLaneEnds, kSearchRows] c2
};

struct KernelTable {
    const char *name;
    // Signs and Hadamard transform of one row, in place. block divides n.
    void (*rotate)(float *row, int64_t n, uint32_t block, uint64_t seed);
    // One token: int8 values, and for each group its scale and its bias (Activations). q has n rounded up to kGroup
    // entries. Returns false when x has a NaN or an infinity (its group is then all 0).
    bool (*quantize)(const float *x, int64_t n, int8_t *q, float *scale, int32_t *bias);
    // Rows of tiles [tile_begin, tile_end) for all tokens; y has y_stride floats a place (`places`). With base
    // fht_struct y holds the base's share and is finished in place. panel is scratch of panel_bytes(ctx, n_tokens)
    // bytes, 64-byte aligned. Returns false when an output is NaN or infinite.
    bool (*compute)(const seeddelta_ctx &ctx, const Activations &a, int64_t tile_begin, int64_t tile_end,
                    uint8_t *panel, float *y, int64_t y_stride);
    void (*viterbi)(const ViterbiTask &task);
    void (*lane_search)(const LaneSearchTask &task);
    // w[r][j] -= sum over i of e[r][i] * f[i][j], i ascending, product and difference rounded apart, for `rows` rows of
    // w_stride and e_stride floats and n columns j; f has f_stride floats a row.
    void (*subtract_product)(float *w, int64_t w_stride, const float *e, int64_t e_stride, const float *f,
                             int64_t f_stride, int64_t rows, int64_t inner, int64_t n);
    // dictionary_dot of format/codebook.hpp
    void (*dictionary)(const seeddelta_ctx &ctx, int64_t begin, int64_t end, const float *x, int64_t n_tokens,
                       int64_t x_stride, float *p, float *atom);
    // fht_struct_block of format/fht_struct.hpp; out and scratch 64-byte aligned
    void (*fht_struct)(uint64_t seed, int64_t block, int64_t n_in, const float *x, float *out, float *scratch);
    const AttentionKernels *attention;
    // Outputs [out_begin, out_end) of y, columns.hpp; out_begin is a multiple of kOutputSlice. y is that of all
    // outputs.
    void (*columns_f16)(const ColumnWeight &w, const ActiveSet &s, int64_t out_begin, int64_t out_end, float *y);
    void (*columns_i8)(const ColumnWeight &w, const ColumnInput &in, int64_t out_begin, int64_t out_end, float *y);
    // The same for several tokens, whose inactive inputs are 0.
    void (*columns_f16_batch)(const ColumnWeight &w, const float *x, int64_t n_tokens, int64_t x_stride,
                              int64_t out_begin, int64_t out_end, float *y, int64_t y_stride);
    void (*columns_i8_batch)(const ColumnWeight &w, const ColumnBatch &in, int64_t out_begin, int64_t out_end, float *y,
                             int64_t y_stride);
    // How many of n scores (0 or more) are above a threshold.
    int64_t (*count_above)(const int32_t *score, int64_t n, int32_t threshold);
    // Bit i of pos (neg) says x[i] > eps (x[i] < -eps); the bits from n on are 0.
    void (*bitmaps)(const float *x, int64_t n, float eps, uint64_t *pos, uint64_t *neg);
    int64_t (*popcount)(const uint64_t *words, int64_t n);
    // Column layout, trellis: y[o] for outputs [begin, end) of one token, in the rotated domain. begin is a multiple of
    // kOutputSlice, end is one or n_out.
    void (*columns_trellis)(const ColumnWeight &w, const ColumnInput &in, int64_t begin, int64_t end, float *y);
    // The same for all tokens of a, whose x are those of all units (0 where a unit is not active); y has y_stride floats
    // a token. Equal bits.
    void (*columns_trellis_many)(const ColumnWeight &w, const Activations &a, int64_t begin, int64_t end, float *y,
                                 int64_t y_stride);
    // Undoes the rotation of row [n] for the columns c with begin <= c mod (n / block) < end, in place.
    void (*rotate_back)(float *row, int64_t n, uint32_t block, uint64_t seed, int64_t begin, int64_t end);
};

// Many tokens with lanes (lanes_many.hpp): columns that are decoded together, tokens that are multiplied together.
inline constexpr int64_t kLanePanelColumns = 512;
inline constexpr int64_t kLaneBlock = 8;

// Scratch of a decoded stretch of columns, and of one block of tokens.
inline constexpr int64_t kLanePanelBytes = kLanePanelColumns * kTileRows * 3 / 2;
static inline int64_t lane_block_bytes(int64_t groups) {
    constexpr int64_t a_group = kGroup + static_cast<int64_t>(sizeof(float) + sizeof(int32_t)); // q, scale, bias
    return kLaneBlock * (groups * a_group + kTileRows * static_cast<int64_t>(sizeof(float)));
}

// Scratch for one thread: a decoded tile, two bytes a value at most, plus slack for whole vectors. With lanes the
// activations of all tokens, in blocks.
static inline int64_t panel_bytes(const seeddelta_ctx &ctx, int64_t n_tokens) {
    const int64_t tile = (ctx.n_in + 2 * kGroup) * kTileRows * 2 + 256;
    if (ctx.base != BaseKind::lanes) {
        return tile;
    }
    const int64_t packed = kLanePanelBytes + (n_tokens + kLaneBlock - 1) / kLaneBlock * lane_block_bytes(ctx.n_groups());
    return packed > tile ? packed : tile;
}

const KernelTable &kernels_scalar();
// One an instruction-set unit; defined where the unit is compiled (SEEDDELTA_HAVE_<NAME>).
const KernelTable &kernels_sse2();
const KernelTable &kernels_avx2();
const KernelTable &kernels_avxvnni();
const KernelTable &kernels_avx512bw();
const KernelTable &kernels_avx512vnni();
const KernelTable &kernels_avx512();
const KernelTable &kernels_neon();
const KernelTable &kernels_neon_dotprod();

// The table in use.
const KernelTable &kernels();

} // namespace seeddelta
