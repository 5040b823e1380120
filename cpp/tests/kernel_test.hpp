// What the parts of kernel_test share: random numbers, random weights, and comparisons.
#pragma once
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "format/float16.hpp"
#include "format/lanes.hpp"
#include "format/proc_sparse.hpp"
#include "format/rotation.hpp"
#include "format/splitmix64.hpp"
#include "kinds/kinds.hpp"
#include "seeddelta/isa.hpp"
#include "seeddelta/weight.hpp"

namespace kernel_test {

using namespace seeddelta;

struct Random {
    uint64_t seed;
    uint64_t count = 0;

    uint64_t next() { return splitmix64_at(seed, count++); }
    int64_t between(int64_t low, int64_t high) { // both included
        return low + static_cast<int64_t>(next() % static_cast<uint64_t>(high - low + 1));
    }
    float real() { return static_cast<float>(static_cast<double>(next() >> 11) * 0x1p-52 - 1.0); }
    std::vector<float> reals(int64_t n, float scale = 1.0F) {
        std::vector<float> v(static_cast<size_t>(n));
        for (float &x : v) {
            x = real() * scale;
        }
        return v;
    }
    template <class T>
    std::vector<T> words(int64_t n) {
        std::vector<T> v(static_cast<size_t>(n));
        for (T &x : v) {
            x = static_cast<T>(next());
        }
        return v;
    }
    std::vector<uint16_t> halves(int64_t n) {
        std::vector<uint16_t> v(static_cast<size_t>(n));
        for (uint16_t &x : v) {
            x = float_to_half(real());
        }
        return v;
    }
};

// 64-byte aligned, as the kernels' scratch must be.
struct Scratch {
    void *data;
    explicit Scratch(int64_t bytes) : data(std::aligned_alloc(64, static_cast<size_t>((bytes + 63) / 64 * 64 + 64))) {}
    Scratch(const Scratch &) = delete;
    Scratch &operator=(const Scratch &) = delete;
    ~Scratch() { std::free(data); }
    template <class T>
    T *as() {
        return static_cast<T *>(data);
    }
};

inline int failures = 0;
inline int64_t checks = 0;

template <class T>
void same(const char *isa, const char *kernel, const std::string &what, const std::vector<T> &expected,
          const std::vector<T> &got) {
    ++checks;
    if (std::memcmp(expected.data(), got.data(), expected.size() * sizeof(T)) == 0) {
        return;
    }
    size_t i = 0;
    // bits, not numbers. NOLINTNEXTLINE(bugprone-suspicious-memory-comparison,cert-exp42-c,cert-flp37-c)
    while (std::memcmp(&expected[i], &got[i], sizeof(T)) == 0) {
        ++i;
    }
    std::printf("FAIL %s %s %s: element %zu is %.9g, the scalar's is %.9g\n", isa, kernel, what.c_str(), i,
                static_cast<double>(got[i]), static_cast<double>(expected[i]));
    ++failures;
}

template <class F>
void each_isa(F &&f) {
    for (const std::string &isa : isa_available()) {
        isa_select(isa);
        f(isa.c_str());
    }
}

// Runs `f`, which gives a vector, with the scalar table and with every other.
template <class F>
void compare(const char *kernel, const std::string &what, F &&f) {
    isa_select("scalar");
    const auto expected = f();
    each_isa([&](const char *isa) { same(isa, kernel, what, expected, f()); });
}

inline const LaneCode *random_code(Random &r) {
    return &lane_codes()[static_cast<size_t>(r.between(0, static_cast<int64_t>(lane_codes().size()) - 1))];
}

// A random weight and what it points to.
struct RandomWeight {
    seeddelta_ctx ctx;
    std::vector<uint16_t> index, half, scale, row_scale, dictionary;
    std::vector<uint32_t> index32;
    std::vector<int8_t> bytes, gain, column_scale;
    std::vector<uint16_t> seeds;
    std::vector<uint8_t> map, codes;
    std::vector<float> column_factor;
    std::string what;

    explicit RandomWeight(Random &r) {
        std::vector<BaseKind> bases(5, BaseKind::lanes);
        bases.push_back(BaseKind::none);
        Kinds::each([&]<class K>() {
            if constexpr (requires { K::kBase; }) {
                bases.push_back(K::kBase);
            }
        });
        ctx.n_out = r.between(1, 90);
        ctx.n_in = r.between(0, 1) == 0 ? r.between(1, 500) : 64 * r.between(1, 12);
        ctx.base = bases[static_cast<size_t>(r.between(0, static_cast<int64_t>(bases.size()) - 1))];
        ctx.base_seed = r.next();
        ctx.base_scale = r.real();
        ctx.base_block = r.between(0, 1) == 0 ? 32 : 64;
        const auto most = static_cast<uint32_t>(ctx.n_in & -ctx.n_in);
        ctx.rotation_block = r.between(0, 1) == 0 ? 0 : std::min(most, 1U << r.between(1, 9));
        row_scale = r.halves(ctx.n_out);
        ctx.row_scale_f16 = row_scale.data();
        what = std::to_string(ctx.n_out) + "x" + std::to_string(ctx.n_in) + " base " +
               std::to_string(static_cast<uint32_t>(ctx.base));
        if (ctx.base == BaseKind::lanes) {
            ctx.lane_code = random_code(r);
            ctx.lane_lines = ctx.lane_code->lines(ctx.n_in);
            codes = r.words<uint8_t>(ctx.n_tiles() * ctx.tile_bytes());
            ctx.codes = codes.data();
            what += " code " + std::to_string(ctx.lane_code->number);
        }
        if (ctx.base == BaseKind::prng_block && r.between(0, 1) == 0) { // chosen seeds: a row, or a block with its gain
            const bool gains = r.between(0, 1) == 0;
            seeds = r.words<uint16_t>(ctx.n_out * (gains ? ctx.base_blocks() : 1));
            ctx.seed_index = seeds.data();
            if (gains) {
                gain = r.words<int8_t>(ctx.n_out * ctx.base_blocks());
                ctx.seed_gain = gain.data();
            }
        }
        if (r.between(0, 3) == 0) {
            for (int64_t i = 0; i < ctx.n_in; ++i) {
                column_scale.push_back(static_cast<int8_t>(r.between(-16, 16)));
                column_factor.push_back(column_factor_of(column_scale.back()));
            }
            ctx.column_scale = column_scale.data();
            ctx.column_factor = column_factor.data();
        }
        residual(r);
    }

    void residual(Random &r) {
        std::vector<ResidualScheme> schemes = {ResidualScheme::none};
        Kinds::each([&]<class K>() {
            if constexpr (requires { K::kScheme; }) {
                schemes.push_back(K::kScheme);
            }
        });
        const bool one_seed = ctx.base == BaseKind::prng_block && ctx.seed_index == nullptr;
        if (ctx.base == BaseKind::none || one_seed) {
            schemes.push_back(ResidualScheme::proc_sparse);
        }
        ctx.scheme = schemes[static_cast<size_t>(r.between(0, static_cast<int64_t>(schemes.size()) - 1))];
        if (ctx.scheme == ResidualScheme::none) {
            return;
        }
        what += " residual " + std::to_string(static_cast<uint32_t>(ctx.scheme));
        if (ctx.scheme == ResidualScheme::proc_sparse) {
            return kept_blocks(r);
        }
        int64_t columns = ctx.n_in;
        int64_t values = 1;
        if (ctx.scheme == ResidualScheme::block) {
            ctx.residual_block = r.between(0, 1) == 0 ? 32 : 64;
            values = ctx.residual_block;
            columns = (ctx.n_in + values - 1) / values;
        } else if (ctx.scheme == ResidualScheme::codebook_resid) {
            columns = ctx.dictionary_size = static_cast<uint32_t>(r.between(1, 40));
            dictionary = r.halves(columns * ctx.n_in);
            ctx.dictionary = dictionary.data();
        }
        const int64_t k = r.between(1, std::min<int64_t>(columns, 40));
        ctx.residual_size = static_cast<uint32_t>(k);
        for (int64_t i = 0; i < ctx.n_out * k; ++i) {
            index32.push_back(static_cast<uint32_t>(r.between(0, columns - 1)));
        }
        for (int64_t row = 0; row < ctx.n_out; ++row) {
            std::sort(index32.begin() + row * k, index32.begin() + (row + 1) * k);
        }
        index.assign(index32.begin(), index32.end());
        if (ctx.scheme == ResidualScheme::coo && r.between(0, 1) == 0) {
            ctx.residual_index32 = index32.data();
        } else {
            ctx.residual_index = index.data();
        }
        if (ctx.scheme == ResidualScheme::codebook_resid || r.between(0, 1) == 0) {
            half = r.halves(ctx.n_out * k * values);
            ctx.residual_vals_f16 = half.data();
        } else {
            bytes = r.words<int8_t>(ctx.n_out * k * values);
            scale = r.halves(ctx.n_out * k);
            ctx.residual_vals_i8 = bytes.data();
            ctx.residual_scale = scale.data();
        }
    }

    void kept_blocks(Random &r) {
        ctx.residual_block = r.between(0, 1) == 0 ? 32 : 64;
        const int64_t blocks = proc_blocks(ctx);
        const int64_t kept = r.between(1, blocks);
        ctx.residual_size = static_cast<uint32_t>(kept);
        map.assign(static_cast<size_t>(ctx.n_out * proc_map_bytes(ctx)), 0);
        for (int64_t row = 0; row < ctx.n_out; ++row) {
            for (int64_t count = 0; count < kept;) {
                const int64_t block = r.between(0, blocks - 1);
                uint8_t &byte = map[static_cast<size_t>(row * proc_map_bytes(ctx) + block / 8)];
                const auto bit = static_cast<uint8_t>(1U << (block % 8));
                count += (byte & bit) == 0 ? 1 : 0;
                byte |= bit;
            }
        }
        bytes = r.words<int8_t>(ctx.n_out * kept * ctx.residual_block);
        scale = r.halves(ctx.n_out);
        ctx.block_map = map.data();
        ctx.residual_vals_i8 = bytes.data();
        ctx.residual_scale = scale.data();
    }
};

void check_attention(Random &r); // kernel_attention.cpp
// Products, attention and encoders by several threads.
void check_threads(Random &r); // kernel_threads.cpp

} // namespace kernel_test
