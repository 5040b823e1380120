#include "gating/statepack.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

#include "simd/columns_scalar.hpp"

namespace seeddelta {

static float mean_magnitude(const float *x, const uint64_t *bits, int64_t words, int64_t count) {
    float sum = 0.0F;
    for (int64_t word = 0; word < words; ++word) {
        for (uint64_t rest = bits[word]; rest != 0; rest &= rest - 1) {
            sum += std::fabs(x[64 * word + std::countr_zero(rest)]);
        }
    }
    return count > 0 ? sum / static_cast<float>(count) : 0.0F;
}

PackResult pack_select(const PackSpec &spec, const float *x, int64_t n, uint64_t *pos, uint64_t *neg,
                       PackState &state) {
    const KernelTable &k = kernels();
    const auto popcount = spec.vector_popcount ? k.gating.popcount : popcount_scalar;
    const int64_t words = bitmap_words(n);
    const bool first = state.density < 0.0F;
    PackResult result;
    if (spec.zeros) {
        k.gating.bitmaps(x, n, 0.0F, pos, neg);
        for (int64_t i = 0; i < words; ++i) {
            pos[i] |= neg[i];
        }
        result.units = popcount(pos, words);
        result.used = true;
        return result;
    }
    k.gating.bitmaps(x, n, std::max(spec.eps, spec.relative * state.gamma), pos, neg);
    if (spec.ternary) {
        result.negative = popcount(neg, words);
        result.units = popcount(pos, words) + result.negative;
    }
    for (int64_t i = 0; i < words; ++i) {
        pos[i] |= neg[i];
    }
    if (!spec.ternary) {
        result.units = popcount(pos, words);
    }
    const float gamma = mean_magnitude(x, pos, words, result.units);
    if (std::isfinite(gamma)) {
        const float capped = first ? gamma : std::min(gamma, kPackGammaCap * std::max(state.gamma, spec.eps));
        state.gamma = first ? capped : state.gamma + kPackMemory * (capped - state.gamma);
    }
    const float density = static_cast<float>(result.units) / static_cast<float>(n);
    state.density = first ? density : state.density + kPackMemory * (density - state.density);
    const bool before = state.active;
    if (state.active && state.density > spec.density) {
        state.active = false;
    } else if (!state.active && state.density < spec.density * (1.0F - spec.hysteresis)) {
        state.active = true;
    }
    result.used = state.active;
    result.switched = before != state.active;
    return result;
}

} // namespace seeddelta
