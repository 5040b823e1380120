// Byte lanes in column layout: closed streams of 16 values along the outputs of a unit. docs/reference/format.md,
// "Column layout".
//
// The outputs of a unit are cut into strips: wide ones of 16 streams (256 outputs), and for the rest narrow ones of 4
// streams (64 outputs), in the middle, so that two threads have as much to do. A stream of the code (format/lanes.hpp)
// begins after the codes that it ends with. Value v of stream w of a strip of W streams is output v * W + w of the
// strip. Codes are strip after strip, in each unit after unit: a product streams through what it reads, and skips what
// is not active.
#pragma once
#include <algorithm>
#include <cstdint>

#include "format/lanes.hpp"
#include "seeddelta/columns.hpp"

namespace seeddelta {

inline constexpr int64_t kColumnValues = 16; // of a stream
inline constexpr int64_t kWideStreams = 16;
inline constexpr int64_t kNarrowStreams = 4;
inline constexpr int64_t kWideOutputs = kWideStreams * kColumnValues;
inline constexpr int64_t kBlockLines = 4; // whose bytes of four streams are neighbors

// Steps of a stream, and its bytes ("lines": two steps each, or eight bits of a plane).
static inline int64_t column_steps(const LaneCode &code) {
    return kColumnValues * kStreams / code.chunk_columns() * code.chunk_steps();
}
static inline int64_t column_lines(const LaneCode &code) {
    return kColumnValues * kStreams / code.chunk_columns() * code.chunk_lines();
}

// Streams of a unit.
static inline int64_t column_streams(int64_t n_out) {
    const int64_t rest = n_out % kWideOutputs;
    return n_out / kWideOutputs * kWideStreams + (rest + kOutputSlice - 1) / kOutputSlice * kNarrowStreams;
}

// The outputs of narrow strips. Where the last one is not full they are at the end.
struct NarrowStrips {
    int64_t begin, end;
    [[gnu::always_inline]] explicit NarrowStrips(int64_t n_out) {
        const int64_t wide = n_out / kWideOutputs;
        begin = (n_out % kOutputSlice == 0 ? (wide + 1) / 2 : wide) * kWideOutputs;
        end = begin + (n_out % kWideOutputs + kOutputSlice - 1) / kOutputSlice * kOutputSlice;
    }
};

// The strip of an output: of unit j the bytes from codes + j * bytes on.
struct ColumnStrip {
    int64_t begin = 0; // its first output
    int64_t streams = 0;
    int64_t bytes = 0; // of a unit
    const uint8_t *codes = nullptr;

    [[gnu::always_inline]] ColumnStrip(const ColumnWeight &w, int64_t output) {
        const NarrowStrips narrow(w.n_out);
        if (output >= narrow.begin && output < narrow.end) {
            streams = kNarrowStreams;
            begin = output - (output - narrow.begin) % kOutputSlice;
        } else {
            streams = kWideStreams;
            begin = output - (output < narrow.begin ? output : output - narrow.end) % kWideOutputs;
        }
        const int64_t lines = column_lines(*w.lane_code);
        bytes = lines * streams;
        codes = w.codes + begin / kColumnValues * lines * w.n_in;
    }
    [[gnu::always_inline]] int64_t outputs() const { return streams * kColumnValues; }

    // Where line `line` of a stream is in a unit's bytes.
    int64_t at(int64_t line, int64_t stream) const {
        const int64_t block = line / kBlockLines * kBlockLines;
        const int64_t lines = std::min(kBlockLines, bytes / streams - block);
        return block * streams + stream / kNarrowStreams * kNarrowStreams * lines + (line - block) * kNarrowStreams +
               stream % kNarrowStreams;
    }
};

// The first output of thread ith of nth: that of a strip, or the middle of a narrow one.
static inline int64_t column_strip_begin(int64_t n_out, int ith, int nth) {
    constexpr int64_t half = kOutputSlice / 2;
    const NarrowStrips narrow(n_out);
    const int64_t at = (n_out + half - 1) / half * ith / nth * half;
    const auto rounded = [](int64_t outputs, int64_t most) {
        return std::min((outputs + kWideOutputs / 2) / kWideOutputs * kWideOutputs, most);
    };
    if (at >= narrow.end) {
        return narrow.end + rounded(at - narrow.end, n_out - narrow.end);
    }
    return std::min(at < narrow.begin ? rounded(at, narrow.begin) : at, n_out);
}

// Values of one unit's strip, into out [strip.outputs()].
void column_strip_values(const ColumnWeight &w, const ColumnStrip &strip, int64_t unit, int8_t *out);

} // namespace seeddelta
