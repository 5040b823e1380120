// Bases and residual schemes beside those that are everywhere (byte lanes, proc_sparse): the seeds ask for them and
// measurements advise against them (docs/internals/quality.md). Each is a folder here. <kind>/kind.hpp has struct
// kinds::<kind> with
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
// simd/kind_<kind>.hpp has its twin for instruction-set units.
#pragma once
#include "kinds/block/kind.hpp"
#include "kinds/codebook_resid/kind.hpp"
#include "kinds/coo/kind.hpp"
#include "kinds/fht_struct/kind.hpp"
#include "kinds/prng_block/kind.hpp"

namespace seeddelta {

struct Kinds {
    // Calls f.template operator()<K>() for the kind of a base; false when it is none of these.
    template <class F>
    static bool base(BaseKind base, F &&f) {
        switch (base) {
        case BaseKind::prng_block:
            f.template operator()<kinds::prng_block>();
            return true;
        case BaseKind::fht_struct:
            f.template operator()<kinds::fht_struct>();
            return true;
        default:
            return false;
        }
    }
    // The same of a residual.
    template <class F>
    static bool scheme(ResidualScheme scheme, F &&f) {
        switch (scheme) {
        case ResidualScheme::coo:
            f.template operator()<kinds::coo>();
            return true;
        case ResidualScheme::block:
            f.template operator()<kinds::block>();
            return true;
        case ResidualScheme::codebook_resid:
            f.template operator()<kinds::codebook_resid>();
            return true;
        default:
            return false;
        }
    }
    // For the base and for the residual of a weight.
    template <class F>
    static void both(const seeddelta_ctx &ctx, F &&f) {
        base(ctx.base, f);
        scheme(ctx.scheme, f);
    }
    template <class F>
    static void each(F &&f) {
        for (const BaseKind kind : {BaseKind::prng_block, BaseKind::fht_struct}) {
            base(kind, f);
        }
        for (const ResidualScheme kind : {ResidualScheme::coo, ResidualScheme::block, ResidualScheme::codebook_resid}) {
            scheme(kind, f);
        }
    }
};

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
