#include "format/trellis.hpp"

#include <stdexcept>

namespace seeddelta {

uint16_t trellis_multiplier(int state_bits, int which) {
    if (state_bits < 8 || state_bits > 16) {
        throw std::invalid_argument("state_bits must be between 8 and 16");
    }
    const uint16_t odd = which == 0 ? 0xB5C7 : 0x6A35;
    return static_cast<uint16_t>(odd << (16 - state_bits));
}

void trellis_row(const seeddelta_ctx &ctx, int64_t row, int16_t *out) {
    const uint16_t *tile = ctx.codes + row / kTileRows * ctx.words() * kTileRows;
    const int lane = static_cast<int>(row % kTileRows);
    const int64_t per_step = ctx.values_per_step;
    for (int64_t column = 0; column < ctx.n_in; ++column) {
        const uint16_t state = trellis_state(tile, lane, column / per_step, static_cast<int>(ctx.step_bits));
        out[column] = static_cast<int16_t>(trellis_value(state, ctx.multiplier[column % per_step]));
    }
}

} // namespace seeddelta
