// The trellis in column layout: a closed (tail-biting) walk for each lane of each unit. docs/reference/format.md,
// "Column layout".
#pragma once
#include <cstdint>

#include "format/trellis.hpp"
#include "seeddelta/columns.hpp"

namespace seeddelta {

// 16-bit words of one lane's closed stream of step_bits * steps bits; what is left of the last word repeats the
// stream's first bits.
static inline int64_t column_words(int64_t step_bits, int64_t steps) {
    return (step_bits * steps + 15) / 16;
}

// Bits [16 * words, 16 * words + 16) of a lane's closed stream, the word after the last one. unit: [words, 16]
static inline uint16_t column_word_after(const uint16_t *unit, int lane, int64_t words, int64_t bits) {
    const int shift = static_cast<int>(16 * words - bits);
    const uint32_t first = unit[lane];
    const uint32_t second = words > 1 ? unit[kTileRows + lane] : first;
    return static_cast<uint16_t>(first << shift | second >> (16 - shift));
}

// The state of `step` in a lane of a unit.
static inline uint16_t column_state(const ColumnWeight &w, const uint16_t *unit, int lane, int64_t step) {
    const int64_t bit = step * w.step_bits;
    const int64_t word = bit / 16;
    const uint32_t first = unit[word * kTileRows + lane];
    const uint32_t second = word + 1 < w.words
                                ? unit[(word + 1) * kTileRows + lane]
                                : column_word_after(unit, lane, w.words, static_cast<int64_t>(w.step_bits) * w.steps());
    return static_cast<uint16_t>((first << 16 | second) >> (16 - bit % 16));
}

// Values of positions [begin, end) of one unit into out.
void column_values(const ColumnWeight &w, int64_t unit, int64_t begin, int64_t end, int8_t *out);

} // namespace seeddelta
