#include "format/lanes.hpp"

#include <algorithm>
#include <initializer_list>

namespace seeddelta {

// A code whose single values have the first table, if there are some, and the first of several the next, and so on.
static constexpr LaneCode shared(uint32_t number, std::initializer_list<uint8_t> emits, float deviation,
                                 const LaneTables &a, const LaneTables &b, const LaneTables &c) {
    const LaneTables tables[] = {a, b, c};
    LaneCode code{number, 0, 0, {}, deviation, {}, 0, {}, 0};
    const int singles = std::find(emits.begin(), emits.end(), 1) != emits.end() ? 1 : 0;
    for (const uint8_t values : emits) {
        code.emits[code.steps++] = values;
        for (int i = 0; i < values; ++i) {
            code.tables[code.values++] = tables[values == 1 ? 0 : singles + i];
        }
    }
    return code;
}

// Of 4.5 bits, for values with a bit of the plane and without.
static constexpr LaneTables kHalfBits = {{-2, 3, -14, -38, -7, 13, 25, -17, 9, -10, 6, 16, 34, -24, 0, -4},
                                         {0, -1, -3, 6, -21, -2, 4, 8, 11, -8, -5, 2, -13, -10, 24, 3}};

static constexpr LaneCode kCodes[] = {
    {2, // 1 bit
     1,
     4,
     {4},
     21.1067F,
     {{{-36, -13, -20, 10, -11, 14, -23, 33, -13, -3, 9, 32, 15, -1, 10, 1},
       {-1, -4, 1, -1, 0, 0, 3, 1, 1, 2, -1, 2, -3, -2, 2, -2}},
      {{4, -31, -8, -5, -1, 34, 1, -14, -20, 19, 6, -31, -4, 25, 5, 21},
       {0, 5, -8, 1, 5, 1, 2, -9, -3, -6, -4, 1, 10, -4, 6, 2}},
      {{-2, 2, -28, -7, 8, 30, 26, 12, -11, 26, -33, -16, -1, 0, 11, -15},
       {-2, -3, -4, 1, 0, -5, 6, -4, -4, 3, 5, 9, -1, -6, 8, -1}},
      {{11, 16, 34, 15, -12, 5, 8, -10, 2, 29, -12, -16, -36, -24, -7, 2},
       {7, 1, 0, 2, 2, 4, -1, 3, -4, -3, -5, -6, -2, 3, 7, -10}}},
     0,
     {},
     0},
    shared(3, // 1.5 bits
           {3, 3, 2}, 19.5892F,
           {{-27, -5, -17, -15, -5, 16, 24, 9, 18, 8, -14, -2, -1, 4, 35, -34},
            {11, -5, 9, 8, -15, -4, 1, 7, 1, 1, -7, -6, 7, -1, -2, 3}},
           {{17, -13, 13, 3, -27, 17, -6, 23, 2, 8, -18, -6, -13, 37, -4, -36},
            {5, -10, -10, -6, 3, -6, -1, 6, 1, 7, 4, -1, 1, -1, 12, -6}},
           {{-8, 5, -23, 16, 30, -1, -25, -16, 21, 10, -2, -23, -8, 6, 2, 13},
            {14, -15, -4, 9, -14, -13, 19, 1, -4, 1, 5, 2, -16, 5, -7, 18}}),
    {4, // 2 bits
     1,
     2,
     {2},
     20.451F,
     {{{-9, 41, 9, -25, 15, 24, 21, 14, 4, -41, -1, -12, 0, -16, -4, -21},
       {-6, -3, -2, 11, -2, 6, -11, 9, 2, -7, 3, -13, 3, 1, 11, -1}},
      {{-26, 25, 9, -4, -14, -22, 0, 11, 23, 41, 0, -41, -10, -12, 16, 7},
       {-14, 7, -2, 3, -8, 4, -1, -4, 13, -1, 8, 3, -2, -5, -8, 6}}},
     0,
     {},
     0},
    shared(5, // 2.5 bits
           {2, 1, 2, 1, 2}, 20.174F,
           {{-40, -19, 27, 3, -27, -18, 20, -4, 40, 17, 12, -11, 5, -9, 7, -4},
            {-1, -10, 17, 6, 8, -2, -7, 4, 8, -4, -16, -10, 8, -1, 1, -1}},
           {{8, -20, -15, -26, 4, -8, 39, -9, 16, -9, 17, 2, 25, -1, 14, -39},
            {-20, 21, 2, -5, 9, 4, -12, -7, 14, -3, -2, -9, 9, -6, 0, 5}},
           {{-17, -2, 10, 39, -40, -26, -4, -8, 18, 17, -12, 3, 4, -17, 26, 9},
            {-12, 16, 3, 11, 3, 3, -13, -4, -7, 4, -2, -15, -1, 15, 15, -15}}),
    {6, // 3 bits
     1,
     2,
     {2},
     16.9567F,
     {{{14, -8, -20, -25, -15, -8, -12, 0, -19, -34, -13, -3, 4, -28, -17, -3},
       {-4, -20, 1, 3, -2, 6, 6, -3, 1, 2, 0, -6, 10, 15, -9, -4}},
      {{11, -24, -10, 4, -28, -13, -20, -7, -16, -5, -10, -36, -1, -16, -1, -19},
       {-4, -1, 18, 11, 2, 2, -1, 5, -5, 2, 2, -18, -7, -5, 8, -10}}},
     1,
     {24},
     2},
    shared(7, // 3.5 bits
           {1, 1, 1, 1, 1, 1, 2}, 17.514F,
           {{-11, 4, -37, 19, -5, -1, -7, 7, -19, 35, 1, 14, 11, -25, -15, 25},
            {-6, -18, -3, 13, 2, -12, 9, 20, -10, -3, 6, 3, 7, -7, 1, -2}},
           {{-6, 10, 18, -23, 8, 4, -3, -13, -1, -18, 2, 14, 27, -30, -9, 21},
            {16, 3, -2, -12, -7, 7, -8, -16, -7, -2, 6, -27, 28, 8, 13, -1}},
           {{2, -11, 22, -5, -6, -1, -1, -7, 2, 6, 11, -14, 15, -20, 9, 4},
            {1, -11, 35, 7, 24, 5, -24, -12, -2, 18, 15, 11, -7, -19, -35, -3}}),
    {8, // 4 bits
     1,
     1,
     {1},
     17.354F,
     {{{-18, 23, 14, -7, 8, 37, -14, -1, -4, 2, 18, -11, -38, -23, 11, 5},
       {2, 9, 12, -4, 3, -5, 5, 1, -1, 19, 7, -9, -7, -2, -11, -18}}},
     0,
     {},
     0},
    {9, // 4.5 bits
     2,
     2,
     {1, 1},
     17.035F,
     {kHalfBits, kHalfBits},
     1,
     {5},
     1},
    {10, // 5 bits
     1,
     1,
     {1},
     14.9665F,
     {{{-18, -20, -22, -30, -5, -1, -3, -24, -11, 15, 5, -13, -28, -9, -15, -26},
       {3, -1, 0, 2, -23, 12, -4, 17, 1, 4, 9, 5, -2, 3, -9, 6}}},
     1,
     {22},
     1},
    {12, // 6 bits
     1,
     1,
     {1},
     16.9533F,
     {{{-24, -34, -16, -15, -6, -5, 10, 4, -28, -19, -18, -12, -50, -31, -33, -17},
       {0, 5, 7, 2, -4, -7, -3, 4, 14, -2, 0, -6, 3, -13, -9, 1}}},
     2,
     {31, 8},
     1},
    {22, // 3 bits, for columns
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
       {12, 3, -6, 0, -25, 25, 16, 9, -6, -9, -2, -1, 3, 8, -16, -12}}},
     0,
     {},
     0},
};

// What the kernels rely on: bytes of a value and 64 neither wrap nor leave 0 .. 127, and a group has whole chunks.
static constexpr bool fits(const LaneCode &code) {
    int values = 0;
    for (int s = 0; s < code.steps; ++s) {
        values += code.emits[s];
        if (code.emits[s] < 1 || code.emits[s] > kLaneMostEmits ||
            (code.planes > 0 && code.emits[s] != code.emits[0])) {
            return false;
        }
    }
    int lowest = -kLaneLargest;
    int highest = kLaneLargest;
    for (int p = 0; p < code.planes; ++p) {
        (code.added[p] > 0 ? highest : lowest) -= code.added[p];
    }
    for (int v = 0; v < code.values; ++v) {
        const LaneTables &t = code.tables[v];
        if (*std::max_element(t.a, t.a + 16) + *std::max_element(t.b, t.b + 16) > highest ||
            *std::min_element(t.a, t.a + 16) + *std::min_element(t.b, t.b + 16) < lowest) {
            return false;
        }
    }
    return values == code.values && kGroup % code.chunk_columns() == 0 &&
           (code.planes == 0 || (code.values_with_bits > 0 && code.values_with_bits % code.emits[0] == 0 &&
                                 kLanePlaneValues % code.values_with_bits == 0 && code.chunk_steps() % 2 == 0));
}

static_assert(std::ranges::all_of(kCodes, fits));
static_assert(std::ranges::is_sorted(kCodes, {}, &LaneCode::number));

std::span<const LaneCode> lane_codes() {
    return kCodes;
}

const LaneCode *lane_code(uint32_t number) {
    const auto *found = std::ranges::find(kCodes, number, &LaneCode::number);
    return found == std::end(kCodes) ? nullptr : found;
}

void lanes_row(const seeddelta_ctx &ctx, int64_t row, int16_t *out) {
    const LaneCode &code = *ctx.lane_code;
    const uint8_t *tile = ctx.codes + row / kTileRows * ctx.lane_lines * kLaneBytes;
    const int64_t chunks = code.chunks(ctx.n_in);
    const int64_t prefix = std::min(kPrefixSteps, code.stream_steps(ctx.n_in));
    for (int64_t stream = 0; stream < kStreams; ++stream) {
        const int64_t lane = row % kTileRows * kStreams + stream;
        int c1 = lane_step(code, tile, lane, prefix - 1);
        int c2 = lane_step(code, tile, lane, prefix - 2);
        int64_t column = stream;
        const uint8_t *planes = tile + lane;
        for (int64_t chunk = 0; chunk < chunks; ++chunk, planes += code.chunk_lines() * kLaneBytes) {
            const uint8_t *codes = planes + code.planes * kLaneBytes;
            int phase = 0;
            int value = 0;
            for (int step = 0; step < code.chunk_steps(); ++step) {
                const int c0 = codes[step / 2 * kLaneBytes] >> (step % 2 * 4) & 15;
                for (int i = 0; i < code.emits[phase]; ++i, ++value, column += kStreams) {
                    int added = 0;
                    for (int p = 0; p < code.planes && i < code.plane_values(step); ++p) {
                        added += (planes[p * kLaneBytes] >> code.plane_bit(step, i) & 1) * code.added[p];
                    }
                    if (column < ctx.n_in) {
                        out[column] = static_cast<int16_t>(lane_value(code, value, i, c0, c1, c2) + added);
                    }
                }
                if (++phase == code.steps) {
                    phase = 0;
                    value = 0;
                }
                c2 = c1;
                c1 = c0;
            }
        }
    }
}

} // namespace seeddelta
