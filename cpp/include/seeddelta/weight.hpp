// The weight of the format (docs/format.md): W ~ row_scale * (base_scale * v * R + delta), over plain arrays.
#pragma once
#include <cstdint>

namespace seeddelta {

enum class BaseKind : uint32_t { prng_block = 0, fht_struct = 1, trellis = 2, none = 255 };
enum class ResidualScheme : uint32_t { coo = 0, block = 1, codebook_resid = 2, none = 255 };

// Rows of a trellis tile: 16 rows are interleaved word by word, one 16-bit lane a row.
inline constexpr int64_t kTileRows = 16;
// Columns that share one activation scale.
inline constexpr int64_t kGroup = 64;

// One converted matrix. All pointers are borrowed and must outlive the struct; shapes are validated by whoever fills it.
struct seeddelta_ctx {
    bool enabled = true;
    int64_t n_out = 0;
    int64_t n_in = 0;

    BaseKind base = BaseKind::none;
    uint64_t base_seed = 0;
    float base_scale = 0.0F;
    uint32_t rotation_block = 0;            // 0, or a power of two dividing n_in
    const int8_t *column_scale = nullptr;   // [n_in], as stored: eighths of an octave. Before the rotation
    const float *column_factor = nullptr;   // [n_in], what they mean: column_factor_of
    uint32_t base_block = 64;             // prng_block: columns a key: 8, 16, 32 or 64
    const uint16_t *seed_index = nullptr; // prng_block, seeds chosen: [n_out], or [n_out, base_blocks()] with seed_gain
    const int8_t *seed_gain = nullptr;    // [n_out, base_blocks()]

    uint32_t step_bits = 0; // trellis: bits a step
    uint32_t values_per_step = 1;
    uint16_t multiplier[2] = {0, 0};
    const uint16_t *codes = nullptr; // [n_tiles, words, 16]

    ResidualScheme scheme = ResidualScheme::none;
    uint32_t residual_size = 0;                  // K a row: entries (coo), blocks (block), atoms (codebook_resid)
    const uint16_t *residual_index = nullptr;    // [n_out, K]; exactly one of the two index widths
    const uint32_t *residual_index32 = nullptr;  // coo only
    const uint16_t *residual_vals_f16 = nullptr; // [n_out, K] float16 bits; exactly one of the two value types
    const int8_t *residual_vals_i8 = nullptr;    // [n_out, K]; for block both are [n_out, K, residual_block]
    const uint16_t *residual_scale = nullptr;    // float16 bits, with int8 values: [n_out] (coo), [n_out, K] (block)
    uint32_t residual_block = 0;                 // block: columns a block, 32 or 64
    uint32_t dictionary_size = 0;                // codebook_resid: M atoms
    const uint16_t *dictionary = nullptr;        // codebook_resid: [M, n_in] float16 bits

    const uint16_t *row_scale_f16 = nullptr; // [n_out] float16 bits; exactly one of the two
    const float *row_scale_f32 = nullptr;
    float tolerance_gap = 0.0F;

    [[gnu::always_inline]] int64_t n_tiles() const { return (n_out + kTileRows - 1) / kTileRows; }
    [[gnu::always_inline]] int64_t n_groups() const { return (n_in + kGroup - 1) / kGroup; }
    [[gnu::always_inline]] int64_t base_blocks() const { return (n_in + base_block - 1) / base_block; }
    [[gnu::always_inline]] int64_t steps() const {
        const int64_t chunk = 16 * static_cast<int64_t>(values_per_step);
        return (n_in + chunk - 1) / chunk * 16;
    }
    [[gnu::always_inline]] int64_t words() const { return (16 + static_cast<int64_t>(step_bits) * (steps() - 1) + 15) / 16; }
};

} // namespace seeddelta
