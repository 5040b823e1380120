// Compares every kernel of every instruction set of this machine with the scalar definition, bit for bit, over random
// shapes, rates, bases and residuals. Needs neither Python nor llama.cpp, so that it runs in an emulator too.
//
//     kernel_test [rounds] [seed] [name ...]     instruction sets that must be there; without what is compared between
//                                                numbers of threads: no-threads
#include <cmath>

#include "format/column_lanes.hpp"
#include "gating/compose.hpp"
#include "kernel_test.hpp"
#include "seeddelta/columns.hpp"
#include "seeddelta/compute.hpp"
#include "simd/kernel_table.hpp"

using namespace kernel_test;

namespace {

void check_product(Random &r) {
    const RandomWeight w(r);
    const int64_t tokens = r.between(0, 2) == 0 ? 1 : r.between(2, 19);
    auto x = r.reals(tokens * w.ctx.n_in, std::pow(10.0F, static_cast<float>(r.between(-30, 30))));
    if (r.between(0, 3) == 0) { // all activations at their largest: nothing may saturate
        std::fill(x.begin(), x.end(), r.real());
    }
    compare("compute", w.what + " tokens " + std::to_string(tokens), [&] {
        std::vector<float> y(static_cast<size_t>(tokens * w.ctx.n_out));
        seeddelta_compute(w.ctx, x.data(), y.data(), static_cast<size_t>(tokens));
        return y;
    });
}

// Column layout: some units of one token, all of them of several, whatever the slices of the threads.
void compare_units(Random &r, const ColumnWeight &w, const std::string &kind, const std::string &what) {
    std::vector<int32_t> index;
    for (int64_t j = 0; j < w.n_in; ++j) {
        if (r.between(0, 2) != 0) {
            index.push_back(static_cast<int32_t>(j));
        }
    }
    const auto values = r.reals(static_cast<int64_t>(index.size()));
    compare(kind.c_str(), what, [&] {
        std::vector<float> y(static_cast<size_t>(w.n_out));
        columns_compute_active(w, {static_cast<int64_t>(index.size()), index.data(), values.data()}, y.data());
        return y;
    });
    const int64_t tokens = r.between(1, 19);
    const auto x = r.reals(tokens * w.n_in);
    compare((kind + "_many").c_str(), what + " tokens " + std::to_string(tokens), [&] {
        std::vector<float> y(static_cast<size_t>(tokens * w.n_out));
        Workspace workspace;
        ComputeStatus status;
        columns_compute_threaded(w, nullptr, x.data(), tokens, w.n_in * 4, y.data(), w.n_out * 4, workspace, 0, 1,
                                 false, status);
        return y;
    });
}

// Byte lanes by columns: wide and narrow strips, and outputs that do not fill one.
void check_column_lanes(Random &r) {
    ColumnWeight w;
    w.kind = ColumnKind::lanes;
    w.lane_code = random_code(r);
    w.n_out = r.between(1, 700);
    w.n_in = r.between(1, 200);
    w.rotation_block = r.between(0, 1) == 0 ? 0 : static_cast<uint32_t>(std::min<int64_t>(w.n_out & -w.n_out, 64));
    w.rotation_seed = r.next();
    const auto codes = r.words<uint8_t>(w.n_in * column_streams(w.n_out) * column_lines(*w.lane_code));
    const auto scale = r.reals(w.n_in);
    w.codes = codes.data();
    w.input_scale = scale.data();
    compare_units(r, w, "columns_lanes",
                  std::to_string(w.n_out) + "x" + std::to_string(w.n_in) + " code " +
                      std::to_string(w.lane_code->number));
}

// The largest and smallest values of every code of byte lanes: one code everywhere.
void check_lane_extremes(uint8_t both) {
    for (const LaneCode &code : lane_codes()) {
        seeddelta_ctx ctx;
        ctx.n_out = 32;
        ctx.n_in = 512;
        ctx.base = BaseKind::lanes;
        ctx.base_scale = 1.0F;
        ctx.lane_code = &code;
        ctx.lane_lines = ctx.lane_code->lines(ctx.n_in);
        const std::vector<uint8_t> codes(static_cast<size_t>(ctx.n_tiles() * ctx.tile_bytes()), both);
        const std::vector<uint16_t> row_scale(32, float_to_half(1.0F));
        ctx.codes = codes.data();
        ctx.row_scale_f16 = row_scale.data();
        for (const float sign : {1.0F, -1.0F}) {
            // All inputs the largest; or of each 2 + 2 of eight columns two of them and what fits 16 bits, then 1 more.
            for (const float rest : {127.0F, 4.0F, 5.0F}) {
                for (const size_t tokens : {size_t{1}, size_t{2}, size_t{4}, size_t{5}, size_t{9}}) {
                    std::vector<float> x(tokens * 512);
                    for (size_t i = 0; i < x.size(); ++i) {
                        const bool first = i % 8 < 4;
                        x[i] = sign * (first || rest == 127.0F ? 127.0F : i % 2 == 0 ? rest : 0.0F);
                    }
                    compare("compute", "extreme values of lanes", [&] {
                        std::vector<float> y(tokens * 32);
                        seeddelta_compute(ctx, x.data(), y.data(), tokens);
                        return y;
                    });
                }
            }
        }
    }
}

void check_activations(Random &r) {
    const auto block = uint32_t{1} << r.between(1, 9);
    const int64_t n = block * r.between(1, 9);
    const auto x = r.reals(n, std::pow(10.0F, static_cast<float>(r.between(-44, 38))));
    const uint64_t seed = r.next();
    compare("rotate", std::to_string(n) + " block " + std::to_string(block), [&] {
        auto row = x;
        kernels().linear.rotate(x.data(), row.data(), n, block, seed);
        auto in_place = x;
        kernels().linear.rotate(in_place.data(), in_place.data(), n, block, seed);
        row.insert(row.end(), in_place.begin(), in_place.end());
        return row;
    });
    auto broken = x;
    if (r.between(0, 3) == 0) {
        broken[static_cast<size_t>(r.between(0, n - 1))] =
            r.between(0, 1) == 0 ? __builtin_nanf("") : -__builtin_inff();
    }
    const int64_t together = r.between(1, kScaleGroups);
    compare("quantize", std::to_string(n) + " groups together " + std::to_string(together), [&] {
        const int64_t groups = (n + kGroup - 1) / kGroup;
        std::vector<int8_t> q(static_cast<size_t>(groups * kGroup));
        std::vector<float> scale(static_cast<size_t>(groups));
        std::vector<int32_t> bias(static_cast<size_t>(groups));
        std::vector<double> all{
            kernels().linear.quantize(broken.data(), n, together, q.data(), scale.data(), bias.data()) ? 1.0 : 0.0};
        all.insert(all.end(), q.begin(), q.end());
        all.insert(all.end(), scale.begin(), scale.end());
        all.insert(all.end(), bias.begin(), bias.end());
        return all;
    });
}

void check_floats(Random &r) {
    const int64_t rows = r.between(1, 9);
    const int64_t inner = r.between(1, 40);
    const int64_t n = r.between(1, 100);
    const auto w = r.reals(rows * n);
    const auto e = r.reals(rows * inner);
    const auto f = r.reals(inner * n);
    compare("subtract_product", std::to_string(rows) + "x" + std::to_string(inner) + "x" + std::to_string(n), [&] {
        auto out = w;
        kernels().encode.subtract_product(out.data(), n, e.data(), inner, f.data(), n, rows, inner, n);
        return out;
    });
}

// Products over columns: skipping one token at a time, and masking several, all by the scalar's bits.
void check_columns(Random &r) {
    ColumnWeight w;
    w.n_out = r.between(0, 1) == 0 ? r.between(1, 300) : 64 * r.between(1, 18);
    w.n_in = r.between(1, 400);
    const auto weights = r.halves(w.n_in * w.n_out);
    w.f16 = weights.data();
    GateSpec spec;
    spec.n_in = w.n_in;
    spec.prompts = true;
    spec.kwta.enabled = r.between(0, 3) != 0;
    spec.kwta.keep = 0.01 * static_cast<double>(r.between(1, 100));
    spec.kwta.block = r.between(0, 1) == 0 ? 1 : 16;
    spec.pack.enabled = r.between(0, 3) == 0;
    spec.pack.eps = 0.3F;
    spec.pack.density = 1.0F;
    const int64_t tokens = r.between(1, 17);
    const auto x = r.reals(tokens * w.n_in, std::pow(10.0F, static_cast<float>(r.between(-20, 20))));
    const std::string what = std::to_string(w.n_out) + "x" + std::to_string(w.n_in);
    const auto product = [&](int64_t batch) {
        std::vector<float> y(static_cast<size_t>(tokens * w.n_out));
        Workspace workspace;
        ComputeStatus status;
        Gate gate(spec);
        for (int64_t t = 0; t < tokens; t += batch) {
            columns_compute_threaded(w, &gate, x.data() + t * w.n_in, std::min(batch, tokens - t), w.n_in * 4,
                                     y.data() + t * w.n_out, w.n_out * 4, workspace, 0, 1, false, status);
        }
        return y;
    };
    compare("columns", what, [&] { return product(1); });
    compare("columns of a prompt", what, [&] { return product(tokens); });
    isa_select("scalar");
    same("scalar", "columns: a prompt and its tokens", what, product(1), product(tokens));
    const auto words = r.words<uint64_t>(r.between(0, 40));
    const auto count = static_cast<int64_t>(words.size());
    compare("popcount", std::to_string(count),
            [&] { return std::vector<int64_t>{kernels().gating.popcount(words.data(), count)}; });
}

} // namespace

int main(int argc, char **argv) {
    const auto rounds = static_cast<int>(argc > 1 ? std::strtol(argv[1], nullptr, 0) : 200);
    const uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 0) : 1;
    const auto names = isa_available();
    bool threads = true;
    for (int i = 3; i < argc; ++i) {
        if (std::string(argv[i]) == "no-threads") {
            threads = false;
        } else if (std::find(names.begin(), names.end(), argv[i]) == names.end()) {
            std::printf("FAIL %s is not available here\n", argv[i]);
            return 1;
        }
    }
    for (int code = 0; code < 16; ++code) {
        check_lane_extremes(static_cast<uint8_t>(17 * code));
    }
    for (int round = 0; round < rounds && failures < 20; ++round) {
        Random r{seed + static_cast<uint64_t>(round) * kGoldenGamma};
        check_product(r);
        check_product(r);
        check_column_lanes(r);
        check_activations(r);
        check_floats(r);
        check_columns(r);
        check_attention(r);
        if (threads) {
            check_threads(r);
        }
        if (failures > 0) {
            std::printf("in round %d of seed %llu\n", round, static_cast<unsigned long long>(seed));
        }
    }
    for (const std::string &name : names) {
        std::printf("%s ", name.c_str());
    }
    std::printf("\n%lld comparisons, %d failures\n", static_cast<long long>(checks), failures);
    return failures == 0 ? 0 : 1;
}
