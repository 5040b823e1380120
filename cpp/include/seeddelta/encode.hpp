// Encoders: dense float32 rows in, arrays of the format out. Deterministic, whatever the number of threads.
#pragma once
#include <cstdint>
#include <vector>

#include "seeddelta/lane_code.hpp"

namespace seeddelta {

struct LanesSpec {
    const LaneCode *code = nullptr;
    uint32_t rotation_block = 0;
    uint64_t seed = 0;
    float scale_factor = 0.0F; // initial row scale over the row's root mean square; 0: the measured best
    // Steps that are decided together, stream by stream; they add up to code->stream_steps(n_in), and the first has 32
    // at least (or all).
    std::vector<int64_t> groups = {};
    int64_t lookahead = 16; // steps searched beyond a group before its codes are fixed
    // Error feedback between blocks of columns (GPTQ, Frantar et al. 2023; LDLQ, Chee et al. 2023): [n_in, n_in], rows
    // and columns in the order of decision; row i of block b holds (H^-1_bb)^-1 H^-1_b,rest in the columns after b. The
    // rows and the importance are then those of rotated columns, and rotation_block is 0.
    const float *feedback = nullptr;
    // Encodings of a row side by side: 1, 2, 4, 8, 16 or 32. With feedback they are carried on from block to block, and
    // more than 1 want the feedback's blocks on the diagonal: triangles U with U U^T = (H^-1_bb)^-1. Without, each has
    // a scale of its own.
    int64_t beam_width = 1;
};

// weights [n_out, n_in] finite; importance [n_in] > 0 or null (unrotated columns). codes [n_tiles, lines, 64] and
// row_scale [n_out] (float16 bits) as in docs/reference/format.md, for base_scale = 1 / code->deviation. The row scale
// is refitted by (weighted) least squares.
void lanes_encode(const float *weights, int64_t n_out, int64_t n_in, const LanesSpec &spec, const float *importance,
                  uint8_t *codes, uint16_t *row_scale, int threads);

// Column layout (docs/reference/format.md): units [n_in, n_out] are the rows of W transposed, rotated along the
// outputs, in the order in which they are encoded; codes [n_in, streams, lines] in the order of
// format/column_lanes.hpp, input_scale [n_in] (float16 bits). Of `spec` the code, the scale_factor and the feedback
// count; here the error e of unit j changes each later unit l by -e * feedback[l, j] (GPTQ; H^-1_jl / H^-1_jj with H^-1
// that of the units not yet encoded).
void columns_lanes_encode(const float *units, int64_t n_out, int64_t n_in, const LanesSpec &spec, uint8_t *codes,
                          uint16_t *input_scale, int threads);

// The k entries of each row with the largest sqrt(importance) * |delta|, ascending; ties go to the lower column. delta
// [n_out, n_in]; index and value [n_out, k]; k <= n_in.
void coo_select(const float *delta, int64_t n_out, int64_t n_in, int64_t k, const float *importance, uint32_t *index,
                float *value, int threads);

// Seeds of base prng_block chosen a row, or a block of columns.
struct SeedSearch {
    uint64_t seed = 0;
    uint32_t block = 64;     // columns a key: 8, 16, 32 or 64
    int64_t choices = 65536; // seeds tried: 1 .. 65536
    bool prune = true;       // false: score every seed exactly; the result is the same
};

// For each row (step null) or each block of a row the choice c < choices for which gain * step * v, with v the values
// of seed + c * golden gamma, removes most of the squared error of `weights` [n_out, n_in], weighted by importance
// [n_in] (null: alike). The gain is any number a row (it becomes the row scale), a whole number of int8 a block. The
// lowest c wins a tie. choice [n_out] or [n_out, blocks], gain [n_out, blocks]. Returns how many seeds were scored
// exactly.
int64_t seed_search(const float *weights, int64_t n_out, int64_t n_in, const SeedSearch &spec, const float *importance,
                    const float *step, uint16_t *choice, int8_t *gain, int threads);

} // namespace seeddelta
