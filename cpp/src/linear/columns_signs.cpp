// Products of signs (PackSpec::aggressive): ternary inputs times ternary weights, by counting bits.
#include <cmath>

#include "linear/columns_parts.hpp"
#include "simd/columns_scalar.hpp"

namespace seeddelta {

int64_t sign_bytes(int64_t n_in) {
    return 4 * Pieces::bytes<uint64_t>(bitmap_words(n_in));
}

bool uses_signs(const ColumnWeight &w, const Gate &gate) {
    return w.sign_bits != nullptr && gate.signs();
}

void multiply_signs(const ColumnWeight &w, const PackSpec &spec, const float *x, const uint64_t *chosen,
                    const ActiveSet &set, Slice slice, float *y) {
    const int64_t words = bitmap_words(w.n_in);
    Pieces pieces(sign_bytes(w.n_in));
    auto *positive = pieces.take<uint64_t>(words);
    auto *negative = pieces.take<uint64_t>(words);
    auto *equal = pieces.take<uint64_t>(words);
    auto *opposite = pieces.take<uint64_t>(words);
    kernels().gating.bitmaps(x, w.n_in, 0.0F, positive, negative);
    for (int64_t i = 0; i < words; ++i) {
        positive[i] &= chosen[i];
        negative[i] &= chosen[i];
    }
    float sum = 0.0F;
    for (int64_t i = 0; i < set.n; ++i) {
        sum += std::fabs(set.value[i]);
    }
    const float gamma = set.n > 0 ? sum / static_cast<float>(set.n) : 0.0F;
    const auto popcount = spec.vector_popcount ? kernels().gating.popcount : popcount_scalar;
    for (int64_t o = slice.begin; o < slice.end; ++o) {
        const uint64_t *plus = w.sign_bits + o * 2 * words;
        const uint64_t *minus = plus + words;
        for (int64_t i = 0; i < words; ++i) {
            equal[i] = (positive[i] & plus[i]) | (negative[i] & minus[i]);
            opposite[i] = (positive[i] & minus[i]) | (negative[i] & plus[i]);
        }
        y[o] = gamma * w.sign_gamma[o] * static_cast<float>(popcount(equal, words) - popcount(opposite, words));
    }
}

} // namespace seeddelta
