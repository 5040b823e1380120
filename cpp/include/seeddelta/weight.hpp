// The weight of the format (docs/reference/format.md): W ~ row_scale * (base_scale * v * R + delta), over plain arrays.
#pragma once
#include <cstdint>

namespace seeddelta {

struct LaneCode;

enum class BaseKind : uint32_t { prng_block = 0, fht_struct = 1, lanes = 2, none = 255 };
enum class ResidualScheme : uint32_t { coo = 0, block = 1, codebook_resid = 2, proc_sparse = 3, none = 255 };

// Rows of a tile of codes.
inline constexpr int64_t kTileRows = 16;
// Columns of a group of activations, and groups that share one scale for base lanes by rows.
inline constexpr int64_t kGroup = 64;
inline constexpr int64_t kScaleGroups = 2;

// Neighboring tiles of one code, of a matrix whose rows have two.
struct TileRun {
    int64_t begin, end; // tiles of the matrix
    const LaneCode *code;
    int64_t lines;        // code->lines(n_in)
    const uint8_t *codes; // [end - begin, lines, 64]
    float scale;          // base_scale
};

// One converted matrix, or the matrices of all experts of a layer, which share everything but their rows: arrays with a
// row, tile or column in front then hold those of expert 0, then those of expert 1, …; see `expert`. All pointers are
// borrowed and must outlive the struct; shapes are validated by whoever fills it.
struct seeddelta_ctx {
    bool enabled = true;
    int64_t n_out = 0; // of one expert
    int64_t n_in = 0;
    int64_t n_experts = 1;

    BaseKind base = BaseKind::none;
    uint64_t base_seed = 0;
    float base_scale = 0.0F;
    uint32_t rotation_block = 0;          // 0, or a power of two dividing n_in
    const int8_t *column_scale = nullptr; // [n_in] an expert, as stored: eighths of an octave. Before the rotation
    const float *column_factor = nullptr; // [n_in] an expert, what they mean: column_factor_of
    uint32_t base_block = 64;             // prng_block: columns a key: 8, 16, 32 or 64
    const uint16_t *seed_index = nullptr; // prng_block, seeds chosen: [n_out], or [n_out, base_blocks()] with seed_gain
    const int8_t *seed_gain = nullptr;    // [n_out, base_blocks()]

    const LaneCode *lane_code = nullptr; // lanes
    int64_t lane_lines = 0;              // lane_code->lines(n_in)
    const uint8_t *codes = nullptr;      // [n_tiles, lane_lines, 64]
    const TileRun *runs = nullptr;       // lanes of two codes: all tiles, in order; the three above are not read then
    int64_t n_runs = 0;

    ResidualScheme scheme = ResidualScheme::none;
    // K a row: entries (coo), blocks (block, proc_sparse), atoms (codebook_resid)
    uint32_t residual_size = 0;
    const uint16_t *residual_index = nullptr;    // [n_out, K]; exactly one of the two index widths
    const uint32_t *residual_index32 = nullptr;  // coo only
    const uint16_t *residual_vals_f16 = nullptr; // [n_out, K] float16 bits; exactly one of the two value types
    const int8_t *residual_vals_i8 = nullptr;    // [n_out, K]; for blocks both are [n_out, K, residual_block]
    const uint16_t *residual_scale = nullptr;    // float16 bits, with int8 values: [n_out], or [n_out, K] (block)
    uint32_t residual_block = 0;                 // block, proc_sparse: columns a block, 32 or 64
    const uint8_t *block_map = nullptr;          // proc_sparse: [n_out, proc_map_bytes] one bit a block
    uint32_t dictionary_size = 0;                // codebook_resid: M atoms
    const uint16_t *dictionary = nullptr;        // codebook_resid: [M, n_in] float16 bits

    const uint16_t *row_scale_f16 = nullptr; // [n_out] float16 bits; exactly one of the two
    const float *row_scale_f32 = nullptr;

    [[gnu::always_inline]] int64_t n_tiles() const { return (n_out + kTileRows - 1) / kTileRows; }
    [[gnu::always_inline]] int64_t n_groups() const { return (n_in + kGroup - 1) / kGroup; }
    [[gnu::always_inline]] int64_t scale_groups() const { return base == BaseKind::lanes ? kScaleGroups : 1; }
    [[gnu::always_inline]] int64_t base_blocks() const { return (n_in + base_block - 1) / base_block; }
    [[gnu::always_inline]] int64_t tile_bytes() const { return lane_lines * 4 * kTileRows; }

    // The matrix of one expert. Bases lanes and none, without dictionary or block_map: the others number their
    // rows throughout.
    seeddelta_ctx expert(int64_t number) const {
        seeddelta_ctx c = part(number * n_out, number * n_tiles(), n_out);
        c.column_scale = column_scale == nullptr ? nullptr : column_scale + number * n_in;
        c.column_factor = column_factor == nullptr ? nullptr : column_factor + number * n_in;
        return c;
    }

    // Rows of the tiles of a run, which begin with its first one.
    seeddelta_ctx rows_of(const TileRun &run) const {
        const int64_t first = run.begin * kTileRows;
        const int64_t end = run.end * kTileRows;
        seeddelta_ctx c = part(first, 0, (end < n_out ? end : n_out) - first);
        c.lane_code = run.code;
        c.lane_lines = run.lines;
        c.codes = run.codes;
        c.base_scale = run.scale;
        c.runs = nullptr;
        return c;
    }

private:
    seeddelta_ctx part(int64_t row, int64_t first_tile, int64_t rows) const {
        seeddelta_ctx c = *this;
        const auto advance = [](auto *&pointer, int64_t by) { pointer = pointer == nullptr ? nullptr : pointer + by; };
        const int64_t entries = residual_size;
        const int64_t values = scheme == ResidualScheme::block ? entries * residual_block : entries;
        c.n_experts = 1;
        c.n_out = rows;
        advance(c.codes, first_tile * tile_bytes());
        advance(c.row_scale_f16, row);
        advance(c.row_scale_f32, row);
        advance(c.residual_index, row * entries);
        advance(c.residual_index32, row * entries);
        advance(c.residual_vals_f16, row * values);
        advance(c.residual_vals_i8, row * values);
        advance(c.residual_scale, scheme == ResidualScheme::block ? row * entries : row);
        return c;
    }
};

} // namespace seeddelta
