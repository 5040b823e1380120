#include "format/lanes.hpp"

#include <algorithm>

namespace seeddelta {

static constexpr LaneCode kCodes[kLaneCodes] = {
    {0, // 4 bits
     1,
     1,
     {1},
     17.354F,
     {{{-18, 23, 14, -7, 8, 37, -14, -1, -4, 2, 18, -11, -38, -23, 11, 5},
       {2, 9, 12, -4, 3, -5, 5, 1, -1, 19, 7, -9, -7, -2, -11, -18}}}},
    {1, // 2 bits
     1,
     2,
     {2},
     20.451F,
     {{{-9, 41, 9, -25, 15, 24, 21, 14, 4, -41, -1, -12, 0, -16, -4, -21},
       {-6, -3, -2, 11, -2, 6, -11, 9, 2, -7, 3, -13, 3, 1, 11, -1}},
      {{-26, 25, 9, -4, -14, -22, 0, 11, 23, 41, 0, -41, -10, -12, 16, 7},
       {-14, 7, -2, 3, -8, 4, -1, -4, 13, -1, 8, 3, -2, -5, -8, 6}}}},
    {2, // 3 bits
     3,
     4,
     {1, 1, 2},
     18.312F,
     {{{37, -11, 8, -37, -4, -20, -26, -7, 11, 26, -15, 2, 15, -2, 4, 19},
       {5, 4, -9, -18, 2, 6, 0, -8, 5, 18, -5, 10, -1, -3, 0, -5}},
      {{11, -7, 5, -5, 37, -2, 19, -19, 25, 8, -11, -26, -14, 14, 2, -37},
       {7, -3, 18, -5, -8, -1, 11, 3, 4, -3, -18, 7, 3, -3, 0, -12}},
      {{23, -9, -23, 4, 18, 10, -4, 3, -10, 14, 37, -20, -36, -3, 7, -14},
       {-19, -11, -4, -1, -7, 3, 7, 10, 0, -1, 12, -10, -6, 4, 20, 1}},
      {{-6, 16, 3, -34, -22, 7, 9, 23, 4, 15, -15, 32, -4, -3, -10, -12},
       {12, 3, -6, 0, -25, 25, 16, 9, -6, -9, -2, -1, 3, 8, -16, -12}}}},
};

// What the kernels rely on: bytes of a value and 64 neither wrap nor leave 0 .. 127, and a group has whole chunks.
static constexpr bool fits(const LaneCode &code) {
    int values = 0;
    for (int s = 0; s < code.steps; ++s) {
        values += code.emits[s];
        if (code.emits[s] != 1 && code.emits[s] != 2) {
            return false;
        }
    }
    for (int v = 0; v < code.values; ++v) {
        const LaneTables &t = code.tables[v];
        if (*std::max_element(t.a, t.a + 16) + *std::max_element(t.b, t.b + 16) > 63 ||
            *std::min_element(t.a, t.a + 16) + *std::min_element(t.b, t.b + 16) < -63) {
            return false;
        }
    }
    const int chunk = static_cast<int>(kLaneWalks) * code.values * (code.steps % 2 == 0 ? 1 : 2);
    return values == code.values && kGroup % chunk == 0;
}

static_assert(std::all_of(kCodes, kCodes + kLaneCodes, fits));

const LaneCode *lane_code(uint32_t number) {
    return number < kLaneCodes ? &kCodes[number] : nullptr;
}

void lanes_row(const seeddelta_ctx &ctx, int64_t row, int16_t *out) {
    const LaneCode &code = *ctx.lane_code;
    const uint8_t *tile = ctx.lane_codes + row / kTileRows * ctx.lane_lines * kLaneBytes;
    const int64_t steps = 2 * ctx.lane_lines;
    const int64_t loop = std::min(kLaneLoop, steps);
    for (int64_t walk = 0; walk < kLaneWalks; ++walk) {
        const int64_t lane = row % kTileRows * kLaneWalks + walk;
        int c1 = lane_step(tile, lane, loop - 1);
        int c2 = lane_step(tile, lane, loop - 2);
        int64_t column = walk;
        int value = 0;
        for (int64_t step = 0; step < steps; ++step) {
            const int c0 = lane_step(tile, lane, step);
            const int emits = code.emits[step % code.steps];
            value = step % code.steps == 0 ? 0 : value;
            for (int i = 0; i < emits; ++i, ++value, column += kLaneWalks) {
                if (column < ctx.n_in) {
                    out[column] = static_cast<int16_t>(lane_value(code, value, i == 1, c0, c1, c2));
                }
            }
            c2 = c1;
            c1 = c0;
        }
    }
}

} // namespace seeddelta
