// codebook_resid for any xsimd architecture. Include inside an instruction-set unit only.
#pragma once
#include "kinds/codebook_resid/kind.hpp"
#include "simd/entries.hpp"
#include "simd/kind.hpp"

namespace seeddelta {
namespace {

// Atoms [begin, end) of the dictionary times all tokens; the definition is dictionary_dot.
template <class Arch>
inline void dictionary_simd(const seeddelta_ctx &ctx, int64_t begin, int64_t end, const float *x, int64_t n_tokens,
                            int64_t x_stride, float *p, float *atom) {
    for (int64_t m = begin; m < end; ++m) {
        const uint16_t *half = ctx.dictionary + m * ctx.n_in;
        for (int64_t i = 0; i < ctx.n_in; ++i) {
            atom[i] = half_to_float(half[i]);
        }
        for (int64_t token = 0; token < n_tokens; ++token) {
            const float *in = x + token * x_stride;
            PartialSums<Arch> partial;
            int64_t i = 0;
            for (; i + kSumLanes <= ctx.n_in; i += kSumLanes) {
                partial.add(atom + i, in + i);
            }
            if (i < ctx.n_in) {
                partial.add_some(ctx.n_in - i, [&](int64_t j) { return atom[i + j] * in[i + j]; });
            }
            p[token * ctx.dictionary_size + m] = partial.reduce();
        }
    }
}

template <class Arch>
struct SimdOf<kinds::codebook_resid, Arch> {
    static float dot(const seeddelta_ctx &ctx, int64_t row, const float *, const float *p) {
        return entries_dot_simd<Arch>(ctx, row, p);
    }
    static void prepare(const seeddelta_ctx &ctx, const PrepareWork &w, float *scratch) {
        const int64_t atoms = ctx.dictionary_size;
        dictionary_simd<Arch>(ctx, atoms * w.ith / w.nth, atoms * (w.ith + 1) / w.nth, w.x, w.n_tokens, w.x_stride, w.p,
                              scratch);
    }
};

} // namespace
} // namespace seeddelta
