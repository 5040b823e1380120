// What every instruction set provides for the encoders.
#pragma once
#include <cstdint>

#include "format/lanes.hpp"

namespace seeddelta {

// Rows of one search of the lane code: two tiles.
inline constexpr int64_t kSearchRows = 32;
inline constexpr int64_t kLaneEnds = 256;

// What one step of the lane code emits: a level for its first and third value by c1 and (c0 + c2) mod 16, [16, 16], for
// its second and fourth by c0 and c0 + c1 + c2, [16, kLaneSums]; backwards in time c2 takes the place of c0. Levels are
// kSearchRows times the index into `levels`.
inline constexpr int kLaneSums = 48; // at least what the sum of three codes can be, so that it need not wrap
struct LaneStep {
    int values;
    bool backwards;
    bool planes;                           // whether they add to its values
    const uint16_t *level[kLaneMostEmits]; // [values]
};

// One search of the lane code (simd/lane_search_scalar.cpp has the definition). Arrays are 64-byte aligned.
struct LaneSearchTask {
    const LaneStep *emitted; // [steps]
    int64_t steps;
    const int16_t *levels; // [n_levels] values that states have
    int64_t n_levels;
    const int16_t *added; // [n_added] what planes may add to levels of steps that have them; the first is 0
    int64_t n_added;
    int error_shift;
    const int16_t *target; // [values of all steps, kSearchRows] target * weight, rounded, saturated
    const int16_t *weight; // [values of all steps]; times any level below 2^15
    const int16_t *start;  // [kSearchRows] the end before the first step; null: any
    int16_t *level_cost;   // scratch: [kLaneMostEmits, n_levels, kSearchRows]
    int16_t *cost;         // out: [kLaneEnds, kSearchRows] after the last step
    int32_t *total;        // out: [kSearchRows] what was taken off the costs on the way
    uint8_t *back;         // out: [steps, kLaneEnds, kSearchRows] c2
};

// Errors up to this cost their square (simd/lane_search_scalar.hpp).
static constexpr uint32_t lane_near(int error_shift, int values) {
    constexpr uint32_t near[kLaneMostEmits] = {55000, 39000, 32000, 27500};
    return near[values - 1] >> error_shift;
}

struct EncodeKernels {
    void (*lane_search)(const LaneSearchTask &task);
    // w[r][j] -= sum over i of e[r][i] * f[i][j], i ascending, each rounded once, for `rows` rows of
    // w_stride and e_stride floats and n columns j; f has f_stride floats a row.
    void (*subtract_product)(float *w, int64_t w_stride, const float *e, int64_t e_stride, const float *f,
                             int64_t f_stride, int64_t rows, int64_t inner, int64_t n);
};

// Scalar definition of subtract_product.
void subtract_product_scalar(float *w, int64_t w_stride, const float *e, int64_t e_stride, const float *f,
                             int64_t f_stride, int64_t rows, int64_t inner, int64_t n);

} // namespace seeddelta
