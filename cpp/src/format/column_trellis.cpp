#include "format/column_trellis.hpp"

namespace seeddelta {

void column_values(const ColumnWeight &w, int64_t unit, int64_t begin, int64_t end, int8_t *out) {
    const uint16_t *codes = w.codes + unit * w.words * kTileRows;
    const int64_t per_step = w.values_per_step;
    for (int64_t p = begin; p < end; ++p) {
        const int64_t column = p / kTileRows;
        const uint16_t state = column_state(w, codes, static_cast<int>(p % kTileRows), column / per_step);
        out[p - begin] = static_cast<int8_t>(trellis_value(state, w.multiplier[column % per_step]));
    }
}

} // namespace seeddelta
