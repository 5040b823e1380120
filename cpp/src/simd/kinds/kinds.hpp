// Bases and residual schemes beside those that are everywhere (trellis, byte lanes, proc_sparse): each is a folder here
// and nothing elsewhere knows it. CMake lists the folders, or none with -DSEEDDELTA_ABLATIONS=OFF, for measurements
// advise against them (docs/internals/quality.md). <kind>/kind.hpp has struct kinds::<kind> with
//
// of a base:
//   kBase, kNames              what it is, what its products may be counted as
//   build(builder)             fills a weight
//   names(ctx)                 what products of this weight are counted as
//   row(ctx, row, out, s)      definition: the values of a row; s is scratch of row_floats(ctx)
//   values(ctx, row, out)      the same as 16-bit integers for the definition of the product; not with kPrepares
// of a residual:
//   kScheme, kNames, build, names
//   check(ctx, rows)           empty, or what is wrong with the contents
//   dot(ctx, row, x, p)        definition: its share of an output
//   add(ctx, row, out)         adds it to a dense row
// of both:
//   kPrepares                  whether the product needs prepare(ctx, work, s) before its rows; s is scratch of
//                              prepare_floats(ctx). A base has its share in y then, a residual p in work.p
//
// <kind>/simd.hpp has SimdOf<kinds::<kind>, Arch> (simd.hpp) for instruction-set units.
#pragma once
#include "seeddelta/weight.hpp"
#include "simd/kinds/prepare.hpp"

namespace seeddelta {

template <class... Ks>
struct KindList {
    // Calls f.template operator()<K>() for the kind of a base; false when it is none of these.
    template <class F>
    static bool base([[maybe_unused]] BaseKind base, [[maybe_unused]] F &&f) {
        bool found = false;
        (
            [&] {
                if constexpr (requires { Ks::kBase; }) {
                    if (Ks::kBase == base) {
                        f.template operator()<Ks>();
                        found = true;
                    }
                }
            }(),
            ...);
        return found;
    }
    // The same of a residual.
    template <class F>
    static bool scheme([[maybe_unused]] ResidualScheme scheme, [[maybe_unused]] F &&f) {
        bool found = false;
        (
            [&] {
                if constexpr (requires { Ks::kScheme; }) {
                    if (Ks::kScheme == scheme) {
                        f.template operator()<Ks>();
                        found = true;
                    }
                }
            }(),
            ...);
        return found;
    }
    // For the base and for the residual of a weight.
    template <class F>
    static void both(const seeddelta_ctx &ctx, F &&f) {
        base(ctx.base, f);
        scheme(ctx.scheme, f);
    }
    template <class F>
    static void each([[maybe_unused]] F &&f) {
        (f.template operator()<Ks>(), ...);
    }
};

} // namespace seeddelta

#include "simd/kinds/list.hpp" // made by CMake: the headers, and `using Kinds = KindList<kinds::…>;`

namespace seeddelta {

inline bool prepares(const seeddelta_ctx &ctx) {
    bool found = false;
    Kinds::both(ctx, [&]<class K>() { found = found || K::kPrepares; });
    return found;
}

// Whether the share of the base is in y before the rows are computed.
inline bool base_in_y(const seeddelta_ctx &ctx) {
    bool found = false;
    Kinds::base(ctx.base, [&]<class K>() { found = K::kPrepares; });
    return found;
}

} // namespace seeddelta
