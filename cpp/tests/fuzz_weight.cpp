// libFuzzer: a weight of any contents. Either check_contents refuses it, or every kernel computes with it inside of its
// arrays. The first byte chooses the instruction set.
#include <algorithm>
#include <cstdlib>

#include "format/column_trellis.hpp"
#include "format/lanes.hpp"
#include "format/rotation.hpp"
#include "format/trellis.hpp"
#include "fuzz_bytes.hpp"
#include "linear/trellis_columns.hpp"
#include "format/proc_sparse.hpp"
#include "seeddelta/check.hpp"
#include "seeddelta/columns.hpp"
#include "seeddelta/compute.hpp"
#include "seeddelta/encode.hpp"
#include "seeddelta/isa.hpp"
#include "format/float16.hpp"

using namespace seeddelta;

namespace {

constexpr uint32_t kRates[][2] = {{1, 1}, {2, 1}, {3, 1}, {4, 1}, {5, 1}, {6, 1}, {3, 2}, {5, 2}};

// The arrays behind a weight.
struct Arrays {
    std::vector<uint16_t> codes, index, half, scale, row_scale, dictionary, seeds;
    std::vector<uint32_t> wide;
    std::vector<int8_t> bytes, gain, column_scale;
    std::vector<uint8_t> map, lane_codes;
    std::vector<float> column_factor, unit_scale, wide_scale;
    ColumnWeight columns;
};

void rate_of(FuzzBytes &in, seeddelta_ctx &c) {
    const auto *rate = kRates[in.between(0, 7)];
    c.step_bits = rate[0];
    c.values_per_step = rate[1];
    for (uint16_t &multiplier : c.multiplier) {
        multiplier = std::max<uint16_t>(1, in.value<uint16_t>());
    }
}

void base_of(FuzzBytes &in, seeddelta_ctx &c, Arrays &a) {
    static constexpr BaseKind kBases[] = {BaseKind::trellis, BaseKind::prng_block, BaseKind::fht_struct,
                                          BaseKind::none, BaseKind::lanes};
    c.base = kBases[in.between(0, 4)];
    c.base_seed = in.value<uint64_t>();
    c.base_scale = half_to_float(in.value<uint16_t>() & 0xBFFFU); // finite
    c.base_block = 8U << in.between(0, 3);
    if (c.base != BaseKind::fht_struct && in.flag()) {
        c.rotation_block = static_cast<uint32_t>(std::min<int64_t>(c.n_in & -c.n_in, int64_t{1} << in.between(0, 6)));
    }
    const bool coded = c.base == BaseKind::trellis || c.base == BaseKind::lanes;
    if ((coded || c.base == BaseKind::none) && in.between(0, 3) == 0) {
        c.n_experts = in.between(2, 3);
    }
    if (coded) {
        if (c.base == BaseKind::trellis) {
            rate_of(in, c);
            a.codes = in.array<uint16_t>(c.n_experts * c.n_tiles() * c.words() * kTileRows);
            c.codes = a.codes.data();
        } else {
            c.lane_code = lane_code(static_cast<uint32_t>(in.between(0, kLaneCodes - 1)));
            c.lane_lines = c.lane_code->lines(c.n_in);
            a.lane_codes = in.array<uint8_t>(c.n_experts * c.n_tiles() * c.tile_bytes());
            c.lane_codes = a.lane_codes.data();
        }
        if (in.flag()) {
            a.column_scale = in.array<int8_t>(c.n_experts * c.n_in);
            for (const int8_t eighths : a.column_scale) {
                a.column_factor.push_back(column_factor_of(eighths));
            }
            c.column_scale = a.column_scale.data();
            c.column_factor = a.column_factor.data();
        }
    } else if (c.base == BaseKind::prng_block && in.flag()) {
        const bool gains = in.flag();
        a.seeds = in.array<uint16_t>(c.n_out * (gains ? c.base_blocks() : 1));
        c.seed_index = a.seeds.data();
        if (gains) {
            a.gain = in.array<int8_t>(c.n_out * c.base_blocks());
            c.seed_gain = a.gain.data();
        }
    }
}

void values_of(FuzzBytes &in, seeddelta_ctx &c, Arrays &a, int64_t n, int64_t scales, bool may_be_half) {
    if (may_be_half && in.flag()) {
        a.half = in.array<uint16_t>(n);
        c.residual_vals_f16 = a.half.data();
        return;
    }
    a.bytes = in.array<int8_t>(n);
    a.scale = in.array<uint16_t>(scales);
    c.residual_vals_i8 = a.bytes.data();
    c.residual_scale = a.scale.data();
}

// Indices are as they come, or made small so that most weights pass the check.
void index_of(FuzzBytes &in, seeddelta_ctx &c, Arrays &a, int64_t n, int64_t limit) {
    a.index = in.array<uint16_t>(n);
    if (in.flag()) {
        const int64_t k = c.residual_size;
        for (int64_t e = 0; e < n; ++e) {
            const bool ascending = c.scheme == ResidualScheme::block;
            a.index[static_cast<size_t>(e)] =
                static_cast<uint16_t>(ascending ? e % k : a.index[static_cast<size_t>(e)] % limit);
        }
    }
    c.residual_index = a.index.data();
}

void residual_of(FuzzBytes &in, seeddelta_ctx &c, Arrays &a) {
    const int64_t rows = c.n_experts * c.n_out;
    c.residual_size = static_cast<uint32_t>(in.between(1, 8));
    const int64_t k = c.residual_size;
    switch (in.between(0, 4)) {
    case 0:
        c.scheme = ResidualScheme::coo;
        if (in.flag()) {
            a.wide = in.array<uint32_t>(rows * k);
            for (uint32_t &column : a.wide) {
                column %= static_cast<uint32_t>(c.n_in + (column >> 28U)); // now and then outside
            }
            c.residual_index32 = a.wide.data();
        } else {
            index_of(in, c, a, rows * k, c.n_in);
        }
        return values_of(in, c, a, rows * k, rows, true);
    case 1:
        c.scheme = ResidualScheme::block;
        c.residual_block = in.flag() ? 32 : 64;
        index_of(in, c, a, rows * k, 0xFFFF);
        return values_of(in, c, a, rows * k * c.residual_block, rows * k, true);
    case 2:
        if (c.n_experts > 1) {
            return;
        }
        c.scheme = ResidualScheme::codebook_resid;
        c.dictionary_size = static_cast<uint32_t>(in.between(1, 9));
        a.dictionary = in.array<uint16_t>(c.dictionary_size * c.n_in);
        c.dictionary = a.dictionary.data();
        index_of(in, c, a, rows * k, c.dictionary_size);
        a.half = in.array<uint16_t>(rows * k);
        c.residual_vals_f16 = a.half.data();
        return;
    case 3: {
        const uint32_t block = in.flag() ? 32 : 64;
        const bool inside =
            c.base == BaseKind::prng_block && c.base_block == block && c.seed_index == nullptr && c.rotation_block == 0;
        if (c.n_experts > 1 || (c.base != BaseKind::none && !inside)) {
            return;
        }
        c.scheme = ResidualScheme::proc_sparse;
        c.residual_block = block;
        a.map = in.array<uint8_t>(c.n_out * proc_map_bytes(c));
        if (in.flag()) { // the first blocks of every row
            const int64_t kept = std::min(k, proc_blocks(c));
            c.residual_size = static_cast<uint32_t>(kept);
            std::fill(a.map.begin(), a.map.end(), uint8_t{0});
            for (int64_t row = 0; row < c.n_out; ++row) {
                a.map[static_cast<size_t>(row * proc_map_bytes(c))] = static_cast<uint8_t>((1U << kept) - 1U);
            }
        }
        c.block_map = a.map.data();
        return values_of(in, c, a, c.n_out * c.residual_size * block, c.n_out, false);
    }
    default:
        return;
    }
}

void row_scale_of(FuzzBytes &in, seeddelta_ctx &c, Arrays &a, int64_t n) {
    if (in.flag()) {
        a.row_scale = in.array<uint16_t>(n);
        c.row_scale_f16 = a.row_scale.data();
    } else {
        a.wide_scale = in.floats(n);
        c.row_scale_f32 = a.wide_scale.data();
    }
}

// Few tokens as a rule: what computes several at once has all its lengths below 10.
int64_t tokens_of(FuzzBytes &in) {
    return in.between(0, 7) == 0 ? in.between(3, 9) : in.between(1, 2);
}

void columns_of(FuzzBytes &in, seeddelta_ctx &c, Arrays &a) {
    c.base = BaseKind::trellis;
    rate_of(in, c);
    ColumnWeight &w = a.columns;
    w.kind = ColumnKind::trellis;
    w.n_out = c.n_out;
    w.n_in = c.n_in;
    w.step_bits = c.step_bits;
    w.values_per_step = c.values_per_step;
    std::copy_n(c.multiplier, 2, w.multiplier);
    w.rotation_block = in.flag() ? static_cast<uint32_t>(std::min<int64_t>(c.n_out & -c.n_out, 64)) : 0;
    w.rotation_seed = in.value<uint64_t>();
    w.words = column_words(w.step_bits, w.steps());
    a.codes = in.array<uint16_t>(w.n_in * w.words * kTileRows);
    w.codes = a.codes.data();
    row_scale_of(in, c, a, c.n_in);
    c.columns = &w;
    if (!check_contents(c).empty()) {
        return;
    }
    for (int64_t i = 0; i < c.n_in; ++i) {
        a.unit_scale.push_back(c.row_scale_f16 != nullptr ? half_to_float(c.row_scale_f16[i]) : c.row_scale_f32[i]);
    }
    w.unit_scale = a.unit_scale.data();
    const int64_t tokens = tokens_of(in);
    const auto x = in.floats(tokens * c.n_in);
    std::vector<float> y(static_cast<size_t>(tokens * c.n_out));
    seeddelta_compute(c, x.data(), y.data(), static_cast<size_t>(tokens));
    std::vector<float> dense(static_cast<size_t>(c.n_out * c.n_in));
    seeddelta_dequantize(c, 0, c.n_out, dense.data());
}

void compute(FuzzBytes &in, const seeddelta_ctx &c) {
    const int64_t tokens = tokens_of(in);
    if (c.n_experts == 1) {
        const auto x = in.floats(tokens * c.n_in);
        std::vector<float> y(static_cast<size_t>(tokens * c.n_out));
        seeddelta_compute(c, x.data(), y.data(), static_cast<size_t>(tokens));
        std::vector<float> dense(static_cast<size_t>(c.n_out * c.n_in));
        seeddelta_dequantize(c, 0, c.n_out, dense.data());
        return;
    }
    ExpertBatch batch;
    batch.n_tokens = tokens;
    batch.used = in.between(1, 2);
    batch.inputs = in.flag() ? batch.used : 1;
    const auto x = in.floats(tokens * batch.inputs * c.n_in);
    std::vector<int32_t> ids(static_cast<size_t>(batch.pairs()));
    for (int32_t &id : ids) { // also those that are not there
        id = in.flag() ? in.value<int32_t>() : static_cast<int32_t>(in.between(0, c.n_experts - 1));
    }
    std::vector<float> y(static_cast<size_t>(batch.pairs() * c.n_out));
    batch.ids = reinterpret_cast<const uint8_t *>(ids.data());
    batch.id_stride = 4;
    batch.token_stride = 4 * batch.used;
    batch.x = x.data();
    batch.x_stride = c.n_in * 4;
    batch.y = y.data();
    batch.y_stride = c.n_out * 4;
    Workspace workspace;
    ComputeStatus status;
    seeddelta_compute_experts(c, batch, workspace, 0, 1, false, status);
    std::vector<float> dense(static_cast<size_t>(c.n_out * c.n_in));
    seeddelta_dequantize(c.expert(c.n_experts - 1), 0, c.n_out, dense.data());
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const std::vector<std::string> isas = isa_available();
    FuzzBytes in(data, size);
    isa_select(isas[in.value<uint8_t>() % isas.size()]);
    seeddelta_ctx c;
    Arrays a;
    c.n_out = in.between(0, 3) == 0 ? in.between(17, 33) : in.between(1, 16);
    c.n_in = in.flag() ? in.between(1, 130) : 32 * in.between(1, 4);
    if (in.between(0, 7) == 0) {
        columns_of(in, c, a);
        return 0;
    }
    base_of(in, c, a);
    row_scale_of(in, c, a, c.n_experts * c.n_out);
    residual_of(in, c, a);
    if (check_contents(c).empty()) {
        compute(in, c);
    }
    return 0;
}
