// libFuzzer: encoders of any finite weights. What they write passes check_contents where float16 can hold the row
// scales.
#include <algorithm>
#include <cmath>

#include "format/column_lanes.hpp"
#include "format/splitmix64.hpp"
#include "fuzz_bytes.hpp"
#include "seeddelta/check.hpp"
#include "seeddelta/columns.hpp"
#include "seeddelta/encode.hpp"
#include "seeddelta/isa.hpp"

using namespace seeddelta;

namespace {

constexpr float kHalfHolds = 1e3F; // weights up to here: the row scale is at most a few times the largest

// Of all inputs one in `of`, by a hash: what takes long is rare however often such an input is varied.
uint64_t hash_of_input = 0;
bool one(uint64_t of) {
    return hash_of_input % of == 0;
}

std::vector<float> finite(FuzzBytes &in, int64_t n) {
    auto v = in.array<float>(n);
    const float most = in.flag() ? 3.4e38F : kHalfHolds;
    for (float &x : v) {
        x = std::isfinite(x) ? std::clamp(x, -most, most) : 0.0F;
    }
    return v;
}

std::vector<float> positive(FuzzBytes &in, int64_t n) {
    auto v = finite(in, n);
    for (float &x : v) {
        x = std::max(std::abs(x), 1e-30F);
    }
    return v;
}

void encode_rows(FuzzBytes &in) {
    LanesSpec spec{.code = any_code(in)};
    seeddelta_ctx c;
    c.base = BaseKind::lanes;
    c.n_out = one(128) ? 17 : in.between(1, 2);
    c.n_in = in.between(1, 40);
    c.lane_code = spec.code;
    c.lane_lines = spec.code->lines(c.n_in);
    const auto weights = finite(in, c.n_out * c.n_in);
    const auto importance = positive(in, c.n_in);
    std::vector<uint8_t> codes(static_cast<size_t>(c.n_tiles() * c.tile_bytes()));
    std::vector<uint16_t> scale(static_cast<size_t>(c.n_out));
    std::vector<float> matrix;
    if (in.flag()) {
        matrix = finite(in, c.n_in * c.n_in);
        spec.feedback = matrix.data();
    } else if (in.flag()) {
        spec.rotation_block =
            static_cast<uint32_t>(std::min<int64_t>(c.n_in & -c.n_in, int64_t{1} << in.between(0, 5)));
    }
    spec.seed = in.value<uint64_t>();
    spec.groups = {spec.code->stream_steps(c.n_in)};
    spec.lookahead = in.between(0, 9);
    spec.beam_width = int64_t{1} << in.between(0, 1);
    lanes_encode(weights.data(), c.n_out, c.n_in, spec, in.flag() ? importance.data() : nullptr, codes.data(),
                 scale.data(), 1);
    c.row_scale_f16 = scale.data();
    const bool small = std::all_of(weights.begin(), weights.end(), [](float w) { return std::abs(w) <= kHalfHolds; });
    require(!small || check_contents(c).empty(), "a row scale is not finite");
}

void encode_column_lanes(FuzzBytes &in) {
    const int64_t n_out = in.between(1, 330);
    const int64_t n_in = in.between(1, 2);
    const auto units = finite(in, n_in * n_out);
    const auto feedback = in.flag() ? finite(in, n_in * n_in) : std::vector<float>{};
    const LanesSpec spec{.code = any_code(in), .feedback = feedback.empty() ? nullptr : feedback.data()};
    std::vector<uint8_t> codes(static_cast<size_t>(n_in * column_streams(n_out) * column_lines(*spec.code)));
    std::vector<uint16_t> scale(static_cast<size_t>(n_in));
    columns_lanes_encode(units.data(), n_out, n_in, spec, codes.data(), scale.data(), 1);
}

void choose_entries(FuzzBytes &in) {
    const int64_t n_out = in.between(1, 5);
    const int64_t n_in = in.between(1, 70);
    const int64_t k = in.between(1, n_in);
    const auto delta = finite(in, n_out * n_in);
    const auto importance = positive(in, n_in);
    std::vector<uint32_t> index(static_cast<size_t>(n_out * k));
    std::vector<float> value(static_cast<size_t>(n_out * k));
    coo_select(delta.data(), n_out, n_in, k, in.flag() ? importance.data() : nullptr, index.data(), value.data(), 1);
    for (int64_t e = 0; e < n_out * k; ++e) {
        const auto at = static_cast<size_t>(e);
        require(index[at] < n_in && (e % k == 0 || index[at - 1] < index[at]), "indices do not ascend below n_in");
        require(value[at] == delta[static_cast<size_t>(e / k * n_in + index[at])], "a value is not that of its index");
    }
}

void search_seeds(FuzzBytes &in) {
    const int64_t n_out = in.between(1, 4);
    const int64_t n_in = in.between(1, 70);
    SeedSearch spec;
    spec.seed = in.value<uint64_t>();
    spec.block = 8U << in.between(0, 3);
    spec.choices = in.between(1, 40);
    spec.prune = in.flag();
    const auto weights = finite(in, n_out * n_in);
    const auto importance = positive(in, n_in);
    const auto step = positive(in, n_out);
    const bool blocks = in.flag();
    const int64_t n = n_out * (blocks ? (n_in + spec.block - 1) / spec.block : 1);
    std::vector<uint16_t> choice(static_cast<size_t>(n));
    std::vector<int8_t> gain(static_cast<size_t>(n));
    seed_search(weights.data(), n_out, n_in, spec, in.flag() ? importance.data() : nullptr,
                blocks ? step.data() : nullptr, choice.data(), blocks ? gain.data() : nullptr, 1);
    for (const uint16_t chosen : choice) {
        require(chosen < spec.choices, "a seed that was not asked for");
    }
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const std::vector<std::string> isas = isa_available();
    FuzzBytes in(data, size);
    isa_select(isas[in.value<uint8_t>() % isas.size()]);
    hash_of_input = size;
    for (size_t i = 0; i < size; ++i) {
        hash_of_input = splitmix64_mix(hash_of_input ^ data[i]);
    }
    const int64_t kind = in.between(0, 7);
    if (kind == 0 && one(32)) { // the searches of columns take a hundred times as long as all else
        encode_column_lanes(in);
    } else if (kind == 1 && one(8)) {
        encode_rows(in);
    } else if (kind < 4) {
        search_seeds(in);
    } else {
        choose_entries(in);
    }
    return 0;
}
