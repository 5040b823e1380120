#include "format/column_lanes.hpp"

namespace seeddelta {

void column_strip_values(const ColumnWeight &w, const ColumnStrip &strip, int64_t unit, int8_t *out) {
    const LaneCode &code = *w.lane_code;
    const uint8_t *bytes = strip.codes + unit * strip.bytes;
    const int64_t steps = column_steps(code);
    for (int64_t stream = 0; stream < strip.streams; ++stream) {
        const auto code_of = [&](int64_t step) {
            return bytes[strip.at(code.code_line(step), stream)] >> (step % 2 * 4) & 15;
        };
        int c1 = code_of(steps - 1);
        int c2 = code_of(steps - 2);
        int64_t at = stream;
        int value = 0;
        for (int64_t step = 0; step < steps; ++step) {
            const int c0 = code_of(step);
            for (int i = 0; i < code.emits[step % code.steps]; ++i, ++value, at += strip.streams) {
                int bits = 0;
                for (int p = 0; p < code.planes && i < code.plane_values(step); ++p) {
                    bits |= (bytes[strip.at(code.plane_line(step, p), stream)] >> code.plane_bit(step, i) & 1) << p;
                }
                out[at] =
                    static_cast<int8_t>(lane_value(code, value % code.values, i, c0, c1, c2) + code.added_by(bits));
            }
            c2 = c1;
            c1 = c0;
        }
    }
}

} // namespace seeddelta
