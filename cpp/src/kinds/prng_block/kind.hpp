// Base kind prng_block: every value from a hash (format/procedural.hpp), of one seed or of seeds that were chosen for
// the rows or for the blocks. docs/reference/format.md.
#pragma once
#include "format/procedural.hpp"
#include "kinds/builder.hpp"

namespace seeddelta {

// The key of a weight's block.
static inline uint64_t prng_block_key_of(const seeddelta_ctx &ctx, int64_t row, int64_t block) {
    uint64_t seed = ctx.base_seed;
    if (ctx.seed_index != nullptr) {
        seed += kGoldenGamma * ctx.seed_index[ctx.seed_gain != nullptr ? row * ctx.base_blocks() + block : row];
    }
    return prng_block_key(seed, static_cast<uint64_t>(row), static_cast<uint64_t>(block));
}

namespace kinds {

struct prng_block {
    static constexpr BaseKind kBase = BaseKind::prng_block;
    static constexpr const char *kNames[] = {"prng_block", "seed_choice"};
    static constexpr bool kPrepares = false;
    static void build(const Builder &b);
    static std::vector<const char *> names(const seeddelta_ctx &ctx);
    static int64_t row_floats(const seeddelta_ctx &) { return 0; }
    static void row(const seeddelta_ctx &ctx, int64_t row, float *out, float *scratch);
    static void values(const seeddelta_ctx &ctx, int64_t row, int16_t *out); // -8064 .. 8064
};

} // namespace kinds
} // namespace seeddelta
