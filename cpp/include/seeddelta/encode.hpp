// Encoders: dense float32 rows in, arrays of the format out. Deterministic, whatever the number of threads.
#pragma once
#include <cstdint>
#include <vector>

#include "seeddelta/check.hpp"

namespace seeddelta {

struct LaneCode;

struct TrellisSpec {
    int step_bits = 4;
    int values_per_step = 1; // 1 or 2
    int state_bits = 12;     // L: 12, 14 or 16; longer is better and slower
    uint32_t rotation_block = 0;
    uint64_t seed = 0;
    uint16_t multiplier[2] = {0, 0};
    float scale_factor = 0.0F; // initial row scale over the row's root mean square; 0: the measured best for the rate
};

// Error feedback between blocks of the trellis' columns (GPTQ, Frantar et al. 2023; LDLQ, Chee et al. 2023).
struct Feedback {
    // [n_in, n_in]; row i of block b holds (H^-1_bb)^-1 H^-1_b,rest in the columns after b
    const float *matrix = nullptr;
    int64_t block = 64;    // columns; a multiple of 16
    int64_t lookahead = 8; // steps searched beyond a block before its states are fixed
};

// weights [n_out, n_in] finite; importance [n_in] > 0 or null (unrotated columns). codes [n_tiles, words, 16] and
// row_scale [n_out] (float16 bits) as in docs/reference/format.md, for base_scale = 1 / kTrellisStd. The row scale is
// refitted by (weighted) least squares. With feedback the rows and the importance are those of the trellis' columns
// (already rotated), and rotation_block is 0.
void trellis_encode(const float *weights, int64_t n_out, int64_t n_in, const TrellisSpec &spec, const float *importance,
                    const Feedback *feedback, uint16_t *codes, uint16_t *row_scale, int threads);

struct LanesSpec {
    const LaneCode *code = nullptr;
    uint32_t rotation_block = 0;
    uint64_t seed = 0;
    float scale_factor = 0.0F;   // initial row scale over the row's root mean square; 0: the measured best
    std::vector<int64_t> groups; // steps that are decided together (encode/lane_blocks.hpp)
    int64_t lookahead = 16;      // steps searched beyond a group before its codes are fixed
    // [n_in, n_in], rows and columns in the order of decision; see Feedback
    const float *feedback = nullptr;
    // Encodings of a row side by side: 1, 2, 4, 8, 16 or 32. With feedback they are carried on from block to block, and
    // more than 1 want the feedback's blocks on the diagonal: triangles U with U U^T = (H^-1_bb)^-1. Without, each has
    // a scale of its own.
    int64_t survivors = 1;
};

// As trellis_encode, for base kind lanes: codes [n_tiles, lines, 64].
void lanes_encode(const float *weights, int64_t n_out, int64_t n_in, const LanesSpec &spec, const float *importance,
                  uint8_t *codes, uint16_t *row_scale, int threads);

// Column layout (docs/reference/format.md): units [n_in, n_out] are the rows of W transposed, rotated along the
// outputs, in the order in which they are encoded; codes [n_in, words, 16], unit_scale [n_in] (float16 bits). With
// `feedback`, float32 [n_in, n_in], the error e of unit j changes each later unit l by -e * feedback[l, j] (GPTQ;
// H^-1_jl / H^-1_jj with H^-1 that of the units not yet encoded). window: steps on each side of the seam that are
// searched to choose where the walk closes; rounds: searches of the whole closed walk.
void columns_encode(const float *units, int64_t n_out, int64_t n_in, const TrellisSpec &spec, const float *feedback,
                    int64_t window, int64_t rounds, uint16_t *codes, uint16_t *unit_scale, int threads);

// The same in byte lanes: codes [n_in, walks, lines] in the order of format/column_lanes.hpp. Of `spec` the code, the
// scale_factor and the feedback count, which is that of columns_encode.
void columns_lanes_encode(const float *units, int64_t n_out, int64_t n_in, const LanesSpec &spec, uint8_t *codes,
                          uint16_t *unit_scale, int threads);

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
