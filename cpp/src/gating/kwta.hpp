// k winners take all: the units of one input with the largest scores. A score is the bits of a float32 of 0 or more, as
// an integer, which orders as the floats do; -1 is a unit that cannot win.
#pragma once
#include <cstdint>

namespace seeddelta {

struct KwtaSpec {
    bool enabled = false;
    double keep = 1.0;          // fraction of the units (blocks) that is kept
    int64_t keep_count = 0;     // or their number; 0: the fraction holds
    int block = 1;              // neighboring inputs that are one unit: 1, 16, 32 or 64
    int duty = 1;               // gate every duty-th token, let all units pass in between
    float temperature = 0.0F;   // of the softmax in the renormalization; 0: all kept units weigh the same there
    bool renormalize = false;   // divide by the share that is kept
    float threshold = -1.0F;    // 0 or more: keep the scores above it instead of a fixed number (TEAL, Liu et al. 2024)
    int gap_every = 0;          // gated tokens between comparisons with the full product; 0: never
    float gap_tolerance = 0.1F; // |y - y_full| / |y_full|, mean over all tokens, that keep and duty are tuned to
    const float *norm = nullptr; // [n_in] factors of the scores (WINA, Chen et al. 2025); null: 1. Borrowed
};

// Units that win: those above `threshold`, and of those equal to it the first `ties`.
struct TopK {
    int32_t threshold = -1;
    int64_t ties = 0;
    int passes = 0; // over the scores, to find it
};

// Scores |x_i| norm_i (block 1) or their sum of squares over a block. Returns false when x has NaN or infinity.
bool kwta_scores(const float *x, int64_t n, const float *norm, int block, int32_t *score);

// The k largest of n scores, ties by index; k at most the number of scores of 0 or more. `guess` is where the search
// starts: the threshold of the token before.
TopK top_k(const int32_t *score, int64_t n, int64_t k, int32_t guess);

// 1 / share that is kept: n / kept, or with a temperature that of softmax(|x| / (temperature * rms of x)).
float kwta_renormalization(const float *x, int64_t n, const int32_t *index, int64_t kept, float temperature);

} // namespace seeddelta
