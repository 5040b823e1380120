// StatePack of the input of an MLP matrix: a bitmap of the inputs that are worth a product, and a gate that turns it
// off where too many are.
#pragma once
#include <cstdint>

namespace seeddelta {

struct PackSpec {
    bool enabled = false;
    bool zeros = false;      // of inputs that are exactly 0 only: the product has the same bits
    bool ternary = false;    // bitmaps of positive and negative inputs, instead of one of both
    float eps = 1e-4F;       // |x| of a unit that passes is larger
    float relative = 0.0F;   // and larger than this share of gamma
    float density = 0.15F;   // largest share of units that passes; above it the bitmap is not used
    float hysteresis = 0.1F; // used again below density * (1 - hysteresis)
    bool vector_popcount = true;
    bool aggressive = false; // ternary: one token's product is that of signs, where the weight has them
};

// What one weight's bitmaps were like. Averages are over tokens, exponential with weight kPackMemory for the last one.
struct PackState {
    float density = -1.0F; // -1: no token yet
    float gamma = 0.0F;    // mean |x| of the units that pass
    bool active = true;
};

inline constexpr float kPackMemory = 0.1F;
// gamma of one token counts as at most this multiple of the average: one wild token must not shift it.
inline constexpr float kPackGammaCap = 4.0F;

// Words of one bitmap of n units.
inline int64_t bitmap_words(int64_t n) {
    return (n + 63) / 64;
}

struct PackResult {
    bool used = false;     // the bitmap selects; else all units pass
    bool switched = false; // the gate changed its mind with this token
    int64_t units = 0;     // that pass the bitmap, used or not
    int64_t negative = 0;  // of them, counted apart when ternary
};

// One token: bitmaps into pos and neg [bitmap_words(n)], their union into pos. Updates the state.
PackResult pack_select(const PackSpec &spec, const float *x, int64_t n, uint64_t *pos, uint64_t *neg, PackState &state);

} // namespace seeddelta
