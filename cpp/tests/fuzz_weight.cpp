// libFuzzer: a weight of any contents. Either it is refused when it is made, or every kernel computes with it inside of
// its arrays. The first byte chooses the instruction set.
#include <algorithm>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <stdexcept>

#include "format/column_dequantize.hpp"
#include "format/column_lanes.hpp"
#include "format/float16.hpp"
#include "format/lanes.hpp"
#include "fuzz_bytes.hpp"
#include "seeddelta/compute.hpp"
#include "seeddelta/isa.hpp"
#include "seeddelta/make_weight.hpp"

using namespace seeddelta;

namespace {

// What make_weight.hpp takes, and the memory behind its arrays.
struct RandomArrays {
    WeightArrays in;
    std::vector<uint16_t> index, half, scale, row_scale, dictionary, seeds;
    std::vector<uint32_t> wide;
    std::vector<int8_t> bytes, gain, column_scale;
    std::vector<uint8_t> map, codes;
    std::vector<float> wide_scale;

    int64_t rows() const { return in.n_experts * in.n_out; }
    int64_t tiles() const { return in.n_experts * ((in.n_out + kTileRows - 1) / kTileRows); }
    bool has(BaseKind base) const { return in.base_kind == static_cast<uint32_t>(base); }
};

void codes_of(FuzzBytes &in, RandomArrays &a) {
    a.in.lane_code = static_cast<int>(any_code(in)->number);
    const int64_t lines = lane_code(static_cast<uint32_t>(a.in.lane_code))->lines(a.in.n_in);
    a.codes = in.array<uint8_t>(a.tiles() * lines * kLaneBytes);
    a.in.codes = Array::of(a.codes.data(), {a.tiles(), lines, kLaneBytes});
}

void seeds_of(FuzzBytes &in, RandomArrays &a) {
    const int64_t blocks = (a.in.n_in + a.in.base_block - 1) / a.in.base_block;
    if (!in.flag()) {
        a.seeds = in.array<uint16_t>(a.in.n_out);
        a.in.seed_idx = Array::of(a.seeds.data(), {a.in.n_out});
        return;
    }
    a.seeds = in.array<uint16_t>(a.in.n_out * blocks);
    a.gain = in.array<int8_t>(a.in.n_out * blocks);
    a.in.seed_idx = Array::of(a.seeds.data(), {a.in.n_out, blocks});
    a.in.seed_gain = Array::of(a.gain.data(), {a.in.n_out, blocks});
}

void base_of(FuzzBytes &in, RandomArrays &a) {
    static constexpr BaseKind kBases[] = {BaseKind::lanes, BaseKind::prng_block, BaseKind::fht_struct, BaseKind::none};
    const BaseKind base = kBases[in.between(0, 3)];
    a.in.base_kind = static_cast<uint32_t>(base);
    a.in.base_seed = in.value<uint64_t>();
    a.in.base_scale = half_to_float(in.value<uint16_t>() & 0xBFFFU); // finite
    a.in.base_block = 8 << in.between(0, 3);
    if (base != BaseKind::fht_struct && in.flag()) {
        a.in.rotation_block =
            static_cast<int>(std::min<int64_t>(a.in.n_in & -a.in.n_in, int64_t{1} << in.between(0, 6)));
    }
    const bool coded = base == BaseKind::lanes;
    if ((coded || base == BaseKind::none) && in.between(0, 3) == 0) {
        a.in.n_experts = in.between(2, 3);
    }
    if (coded) {
        codes_of(in, a);
        if (in.flag()) {
            a.column_scale = in.array<int8_t>(a.in.n_experts * a.in.n_in);
            a.in.column_scale = Array::of(a.column_scale.data(), {a.in.n_experts * a.in.n_in});
        }
    } else if (base == BaseKind::prng_block && in.flag()) {
        seeds_of(in, a);
    }
}

void values_of(FuzzBytes &in, RandomArrays &a, Array &value, Array &scale, const std::vector<int64_t> &shape,
               const std::vector<int64_t> &scale_shape, bool may_be_half) {
    const auto length = [](const std::vector<int64_t> &of) {
        return std::accumulate(of.begin(), of.end(), int64_t{1}, std::multiplies<>());
    };
    if (may_be_half && in.flag()) {
        a.half = in.array<uint16_t>(length(shape));
        value = Array::of_half(a.half.data(), shape);
        return;
    }
    a.bytes = in.array<int8_t>(length(shape));
    a.scale = in.array<uint16_t>(length(scale_shape));
    value = Array::of(a.bytes.data(), shape);
    scale = Array::of_half(a.scale.data(), scale_shape);
}

// Indices are as they come, or made small so that most weights pass the check.
Array index_of(FuzzBytes &in, RandomArrays &a, int64_t k, int64_t limit, bool ascending) {
    a.index = in.array<uint16_t>(a.rows() * k);
    if (in.flag()) {
        for (int64_t e = 0; e < a.rows() * k; ++e) {
            a.index[static_cast<size_t>(e)] =
                static_cast<uint16_t>(ascending ? e % k : a.index[static_cast<size_t>(e)] % limit);
        }
    }
    return Array::of(a.index.data(), {a.rows(), k});
}

void coo_of(FuzzBytes &in, RandomArrays &a, int64_t k) {
    if (in.flag()) {
        a.wide = in.array<uint32_t>(a.rows() * k);
        for (uint32_t &column : a.wide) {
            column %= static_cast<uint32_t>(a.in.n_in + (column >> 28U)); // now and then outside
        }
        a.in.d_idx = Array::of(a.wide.data(), {a.rows(), k});
    } else {
        a.in.d_idx = index_of(in, a, k, a.in.n_in, false);
    }
    values_of(in, a, a.in.d_val, a.in.d_scale, {a.rows(), k}, {a.rows()}, true);
}

void codebook_of(FuzzBytes &in, RandomArrays &a, int64_t k) {
    const int64_t atoms = in.between(1, 9);
    a.dictionary = in.array<uint16_t>(atoms * a.in.n_in);
    a.in.r_dict = Array::of_half(a.dictionary.data(), {atoms, a.in.n_in});
    a.in.r_codes = index_of(in, a, k, atoms, false);
    a.half = in.array<uint16_t>(a.rows() * k);
    a.in.r_vals = Array::of_half(a.half.data(), {a.rows(), k});
}

void proc_sparse_of(FuzzBytes &in, RandomArrays &a, int64_t k) {
    const int64_t block = in.flag() ? 32 : 64;
    const int64_t blocks = (a.in.n_in + block - 1) / block;
    const int64_t map_bytes = (blocks + 7) / 8;
    a.map = in.array<uint8_t>(a.in.n_out * map_bytes);
    if (in.flag()) { // the first blocks of every row
        k = std::min(k, blocks);
        std::fill(a.map.begin(), a.map.end(), uint8_t{0});
        for (int64_t row = 0; row < a.in.n_out; ++row) {
            a.map[static_cast<size_t>(row * map_bytes)] = static_cast<uint8_t>((1U << k) - 1U);
        }
    }
    a.in.p_map = Array::of(a.map.data(), {a.in.n_out, map_bytes});
    values_of(in, a, a.in.p_val, a.in.p_scale, {a.in.n_out, k, block}, {a.in.n_out}, false);
}

void residual_of(FuzzBytes &in, RandomArrays &a) {
    const int64_t k = in.between(1, 8);
    switch (in.between(0, 4)) {
    case 0:
        return coo_of(in, a, k);
    case 1: {
        const int64_t block = in.flag() ? 32 : 64;
        a.in.b_map = index_of(in, a, k, 0xFFFF, true);
        return values_of(in, a, a.in.b_val, a.in.b_scale, {a.rows(), k, block}, {a.rows(), k}, true);
    }
    case 2:
        return codebook_of(in, a, k);
    case 3:
        return proc_sparse_of(in, a, k);
    default:
        return;
    }
}

void row_scale_of(FuzzBytes &in, RandomArrays &a, int64_t n) {
    if (in.flag()) {
        a.row_scale = in.array<uint16_t>(n);
        a.in.row_scale = Array::of_half(a.row_scale.data(), {n});
    } else {
        a.wide_scale = in.floats(n);
        a.in.row_scale = Array::of(a.wide_scale.data(), {n});
    }
}

void columns_of(FuzzBytes &in, RandomArrays &a) {
    a.in.by_column = true;
    a.in.base_scale = 1.0F;
    a.in.base_seed = in.value<uint64_t>();
    a.in.rotation_block = in.flag() ? static_cast<int>(std::min<int64_t>(a.in.n_out & -a.in.n_out, 64)) : 0;
    a.in.base_kind = static_cast<uint32_t>(BaseKind::lanes);
    a.in.lane_code = static_cast<int>(any_code(in)->number);
    const int64_t lines = column_lines(*lane_code(static_cast<uint32_t>(a.in.lane_code)));
    const int64_t streams = column_streams(a.in.n_out);
    a.bytes = in.array<int8_t>(a.in.n_in * streams * lines);
    a.in.codes = Array::of(a.bytes.data(), {a.in.n_in, streams, lines});
    row_scale_of(in, a, a.in.n_in);
}

// Few tokens as a rule: what computes several at once has all its lengths below 10.
int64_t tokens_of(FuzzBytes &in) {
    return in.between(0, 7) == 0 ? in.between(3, 9) : in.between(1, 2);
}

void compute_columns(FuzzBytes &in, const ColumnWeight &w) {
    const int64_t tokens = tokens_of(in);
    const auto x = in.floats(tokens * w.n_in);
    std::vector<float> y(static_cast<size_t>(tokens * w.n_out));
    Workspace workspace;
    ComputeStatus status;
    columns_compute_threaded(w, nullptr, x.data(), tokens, w.n_in * 4, y.data(), w.n_out * 4, workspace, 0, 1, false,
                             status);
    std::vector<float> dense(static_cast<size_t>(w.n_out * w.n_in));
    columns_dequantize(w, 0, w.n_out, dense.data());
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
    RandomArrays a;
    a.in.n_out = in.between(0, 3) == 0 ? in.between(17, 33) : in.between(1, 16);
    a.in.n_in = in.flag() ? in.between(1, 130) : 32 * in.between(1, 4);
    if (in.between(0, 7) == 0) {
        columns_of(in, a);
    } else {
        base_of(in, a);
        row_scale_of(in, a, a.rows());
        residual_of(in, a);
    }
    try {
        const CheckedWeight weight("fuzzed", a.in);
        if (weight.is_column()) {
            compute_columns(in, weight.columns());
        } else {
            compute(in, weight.ctx());
        }
    } catch (const std::invalid_argument &) { // contents that a file must not have
        return 0;
    }
    return 0;
}
