// AMX unit (Sapphire Rapids and later): byte lanes of several tokens by matrix registers; the rest is the table of
// isa_avx512.cpp.
#include <immintrin.h>

#include "simd/lanes_amx.hpp"
#include "simd/words_512.hpp"

namespace seeddelta {
namespace {

struct SignedWords : WordsVbmi {
    static constexpr int kBias = 0; // the products are of signed bytes
};

// More tokens than this; fewer take VPDPBUSD.
constexpr int64_t kFew = 4;

bool compute(const seeddelta_ctx &ctx, const Activations &a, int64_t tile_begin, int64_t tile_end, uint8_t *panel,
             float *y, int64_t y_stride) {
    if (ctx.base != BaseKind::lanes || a.n_tokens <= kFew) {
        return kernels_avx512().linear.compute(ctx, a, tile_begin, tile_end, panel, y, y_stride);
    }
    return lanes_compute_matrix<xsimd::avx512bw, SignedWords>(ctx, a, tile_begin, tile_end, panel, y, y_stride);
}

} // namespace

const KernelTable &kernels_amx() {
    static const KernelTable table = [] {
        KernelTable t = kernels_avx512();
        t.name = "amx";
        t.linear.compute = compute;
        return t;
    }();
    return table;
}

} // namespace seeddelta
