#include "seeddelta/make_weight.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "format/column_lanes.hpp"
#include "format/float16.hpp"
#include "format/lanes.hpp"
#include "format/proc_sparse.hpp"
#include "format/rotation.hpp"
#include "kinds/builder.hpp"
#include "kinds/kinds.hpp"
#include "seeddelta/check.hpp"

namespace seeddelta {

namespace {

using W = WeightArrays;
constexpr std::pair<std::string_view, ArrayMember> kArrays[] = {{"codes", &W::codes},
                                                                {"fine_codes", &W::fine_codes},
                                                                {"fine_map", &W::fine_map},
                                                                {"row_scale", &W::row_scale},
                                                                {"column_scale", &W::column_scale},
                                                                {"seed_idx", &W::seed_idx},
                                                                {"seed_gain", &W::seed_gain},
                                                                {"d_idx", &W::d_idx},
                                                                {"d_val", &W::d_val},
                                                                {"d_scale", &W::d_scale},
                                                                {"b_map", &W::b_map},
                                                                {"b_val", &W::b_val},
                                                                {"b_scale", &W::b_scale},
                                                                {"r_dict", &W::r_dict},
                                                                {"r_codes", &W::r_codes},
                                                                {"r_vals", &W::r_vals},
                                                                {"p_map", &W::p_map},
                                                                {"p_val", &W::p_val},
                                                                {"p_scale", &W::p_scale}};

constexpr int64_t kMost = int64_t{1} << 28; // rows, columns: products of them fit 64 bits

void set_shape(const Builder &b) {
    const WeightArrays &in = b.in;
    seeddelta_ctx &c = b.c;
    b.require(in.n_out > 0 && in.n_in > 0 && in.n_out < kMost && in.n_in < kMost, "shape out of range");
    b.require(in.n_experts > 0 && in.n_experts < kMost / in.n_out, "n_experts out of range");
    c.base = static_cast<BaseKind>(in.base_kind);
    const bool may_have_experts = c.base == BaseKind::lanes || c.base == BaseKind::none;
    b.require(in.n_experts == 1 || (may_have_experts && !in.r_dict), "experts have lanes or no base, and no codebook");
    b.require(c.base == BaseKind::prng_block || (!in.seed_idx && !in.seed_gain), "seed_idx is for prng_block");
    c.n_experts = in.n_experts;
    c.n_out = in.n_out;
    c.n_in = in.n_in;
    c.base_seed = in.base_seed;
    c.base_scale = in.base_scale;
    b.require(std::isfinite(in.base_scale), "base_scale is not finite");
    const int64_t rotated = in.by_column ? in.n_out : in.n_in;
    b.require(in.rotation_block == 0 ||
                  (in.rotation_block > 0 && std::has_single_bit(static_cast<unsigned>(in.rotation_block)) &&
                   rotated % in.rotation_block == 0),
              "rotation_block must be 0 or a power of two that divides n_in (in column layout n_out)");
    c.rotation_block = static_cast<uint32_t>(in.rotation_block);
}

const LaneCode *lane_code_of(const Builder &b, int number) {
    const LaneCode *code = number < 0 ? nullptr : lane_code(static_cast<uint32_t>(number));
    b.require(code != nullptr, "there is no code of byte lanes with the number " + std::to_string(number));
    b.require(bool(b.in.codes), "base lanes needs codes");
    return code;
}

// The tiles of two codes, which lie apart, in the order of the matrix.
std::vector<TileRun> tile_runs(const Builder &b) {
    const WeightArrays &in = b.in;
    const int64_t tiles = b.c.n_tiles();
    b.require(in.n_experts == 1 && in.fine_map && in.fine_codes, "fine_code needs fine_codes and fine_map, no experts");
    require_array(in.fine_map, "fine_map", "iu", 1, {(tiles + 7) / 8});
    const auto *map = in.fine_map.as<uint8_t>();
    const auto is_fine = [&](int64_t tile) { return (map[tile / 8] >> tile % 8 & 1) != 0; };
    std::vector<TileRun> runs;
    int64_t counts[2] = {};
    const LaneCode *codes[2] = {b.c.lane_code, lane_code_of(b, in.fine_code)};
    for (int64_t begin = 0, end = 0; begin < tiles; begin = end) {
        const bool fine = is_fine(begin);
        for (end = begin + 1; end < tiles && is_fine(end) == fine; ++end) {
        }
        const LaneCode *code = codes[fine];
        const int64_t lines = code->lines(b.c.n_in);
        const auto *first = (fine ? in.fine_codes : in.codes).as<uint8_t>() + counts[fine] * lines * kLaneBytes;
        runs.push_back({begin, end, code, lines, first, b.c.base_scale * (codes[0]->deviation / code->deviation)});
        counts[fine] += end - begin;
    }
    for (int64_t tile = tiles; tile % 8 != 0; ++tile) {
        b.require(!is_fine(tile), "fine_map has bits behind the last tile");
    }
    require_array(in.codes, "codes", "iu", 1, {counts[0], b.c.lane_lines, kLaneBytes});
    require_array(in.fine_codes, "fine_codes", "iu", 1, {counts[1], codes[1]->lines(b.c.n_in), kLaneBytes});
    return runs;
}

void set_lanes(const Builder &b) {
    const LaneCode *code = lane_code_of(b, b.in.lane_code);
    b.c.lane_code = code;
    b.c.lane_lines = code->lines(b.c.n_in);
    b.c.codes = b.in.codes.as<uint8_t>();
    if (b.in.fine_code < 0) {
        require_array(b.in.codes, "codes", "iu", 1, {b.c.n_experts * b.c.n_tiles(), b.c.lane_lines, kLaneBytes});
    }
}

void set_base(const Builder &b) {
    switch (b.c.base) {
    case BaseKind::lanes:
        return set_lanes(b);
    case BaseKind::none:
        return;
    default:
        break;
    }
    if (b.c.base == BaseKind::prng_block && b.in.p_map && !b.in.seed_idx) { // of the kept blocks only
        b.c.base_block = static_cast<uint32_t>(b.in.base_block);
        return;
    }
    b.require(Kinds::base(b.c.base, [&]<class K>() { K::build(b); }),
              "unknown base kind " + std::to_string(b.in.base_kind));
}

void set_row_scale(const Builder &b) {
    b.require(bool(b.in.row_scale), "needs row_scale");
    const bool half = b.in.row_scale.item_size == 2;
    require_array(b.in.row_scale, "row_scale", "f", half ? 2 : 4, {b.in.by_column ? b.c.n_in : b.rows()});
    b.c.row_scale_f16 = half ? b.in.row_scale.as<uint16_t>() : nullptr;
    b.c.row_scale_f32 = half ? nullptr : b.in.row_scale.as<float>();
}

// What the stored scales of the columns mean.
std::vector<float> set_column_scale(const Builder &b) {
    if (!b.in.column_scale) {
        return {};
    }
    b.require(b.c.base == BaseKind::lanes, "column_scale is for lanes");
    const int64_t n = b.c.n_experts * b.c.n_in;
    require_array(b.in.column_scale, "column_scale", "i", 1, {n});
    b.c.column_scale = b.in.column_scale.as<int8_t>();
    std::vector<float> factor(static_cast<size_t>(n));
    std::transform(b.c.column_scale, b.c.column_scale + n, factor.begin(), column_factor_of);
    return factor;
}

void set_proc_sparse(const Builder &b) {
    const Array &value = b.in.p_val;
    seeddelta_ctx &c = b.c;
    b.require(value && b.in.p_scale, "p_map without p_val and p_scale");
    b.require(value.shape.size() == 3, "p_val must be [n_out, kept, block]");
    const int64_t kept = value.shape[1];
    const int64_t block = value.shape[2];
    b.require(block == 32 || block == 64, "the block of p_val must have 32 or 64 columns");
    b.require(c.base == BaseKind::none || (c.base == BaseKind::prng_block && c.base_block == block &&
                                           c.seed_index == nullptr && c.rotation_block == 0),
              "proc_sparse has the base none, or prng_block of the same block with one seed and no rotation");
    b.require(c.n_experts == 1, "proc_sparse has no experts");
    c.scheme = ResidualScheme::proc_sparse;
    c.residual_size = static_cast<uint32_t>(kept);
    c.residual_block = static_cast<uint32_t>(block);
    require_array(value, "p_val", "i", 1, {c.n_out, kept, block});
    require_array(b.in.p_map, "p_map", "iu", 1, {c.n_out, proc_map_bytes(c)});
    require_array(b.in.p_scale, "p_scale", "f", 2, {c.n_out});
    c.block_map = b.in.p_map.as<uint8_t>();
    c.residual_vals_i8 = value.as<int8_t>();
    c.residual_scale = b.in.p_scale.as<uint16_t>();
}

void set_residual(const Builder &b) {
    struct Given {
        ResidualScheme scheme;
        const char *first;
        const Array &array;
        bool others;
    };
    const WeightArrays &in = b.in;
    const Given schemes[] = {{ResidualScheme::coo, "d_idx", in.d_idx, in.d_val || in.d_scale},
                             {ResidualScheme::block, "b_map", in.b_map, in.b_val || in.b_scale},
                             {ResidualScheme::codebook_resid, "r_dict", in.r_dict, in.r_codes || in.r_vals},
                             {ResidualScheme::proc_sparse, "p_map", in.p_map, in.p_val || in.p_scale}};
    b.require(std::count_if(std::begin(schemes), std::end(schemes), [](const Given &s) { return bool(s.array); }) <= 1,
              "more than one residual scheme");
    for (const Given &one : schemes) {
        b.require(one.array || !one.others, std::string("lacks ") + one.first + " of its residual");
        if (one.array && one.scheme == ResidualScheme::proc_sparse) {
            set_proc_sparse(b);
        } else if (one.array) {
            Kinds::scheme(one.scheme, [&]<class K>() { K::build(b); });
        }
    }
}

ColumnWeight column_layout(const Builder &b) {
    const WeightArrays &in = b.in;
    b.require(b.c.base == BaseKind::lanes && !in.column_scale && !in.d_idx && !in.b_map && !in.r_dict && !in.p_map &&
                  in.fine_code < 0 && b.c.n_experts == 1,
              "column layout is for one matrix of lanes of one code, without column_scale and residual");
    const LaneCode *code = lane_code_of(b, in.lane_code);
    require_array(in.codes, "codes", "iu", 1, {b.c.n_in, column_streams(b.c.n_out), column_lines(*code)});
    return {.kind = ColumnKind::lanes,
            .n_out = b.c.n_out,
            .n_in = b.c.n_in,
            .lane_code = code,
            .codes = in.codes.as<uint8_t>(),
            .rotation_block = b.c.rotation_block,
            .rotation_seed = b.c.base_seed};
}

} // namespace

ArrayMember array_named(std::string_view suffix) {
    const auto *found =
        std::find_if(std::begin(kArrays), std::end(kArrays), [&](const auto &one) { return one.first == suffix; });
    return found == std::end(kArrays) ? nullptr : found->second;
}

CheckedWeight::CheckedWeight(const std::string &name, const WeightArrays &arrays) : by_column_(arrays.by_column) {
    const Builder b{name, arrays, ctx_};
    set_shape(b);
    std::string wrong;
    if (!arrays.by_column) {
        set_base(b);
        if (arrays.fine_code >= 0) {
            b.require(ctx_.base == BaseKind::lanes, "fine_code is for lanes");
            runs_ = tile_runs(b);
            ctx_.runs = runs_.data();
            ctx_.n_runs = static_cast<int64_t>(runs_.size());
        }
        set_row_scale(b);
        column_factor_ = set_column_scale(b);
        ctx_.column_factor = arrays.column_scale ? column_factor_.data() : nullptr;
        set_residual(b);
        wrong = check_contents(ctx_);
    } else {
        columns_ = column_layout(b);
        set_row_scale(b);
        wrong = check_row_scale(ctx_, ctx_.n_in);
    }
    b.require(wrong.empty(), wrong);
    for (int64_t j = 0; arrays.by_column && j < ctx_.n_in; ++j) {
        const float scale =
            ctx_.row_scale_f16 != nullptr ? half_to_float(ctx_.row_scale_f16[j]) : ctx_.row_scale_f32[j];
        input_scale_.push_back(scale * ctx_.base_scale);
    }
    columns_.input_scale = input_scale_.data();
}

} // namespace seeddelta
