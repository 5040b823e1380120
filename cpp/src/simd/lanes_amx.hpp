// Byte lanes for many tokens by AMX (Sapphire Rapids and later). What a panel of lanes_many.hpp has of a group, 16
// registers of 16 rows and four columns, is a matrix register as it stands; with the group's activations of 16 tokens,
// as they lie, one instruction gives all sums. Include inside an instruction-set unit only.
//
// The instructions are spelled out: GCC's functions before 12.4 and 13.3 do not say that they read memory.
#pragma once
#include "simd/lanes_compute.hpp"

namespace seeddelta {
namespace {

// A thread's matrix registers: 0 to 2 have rows of 16 tokens, 3 to 5 those of the last ones, 6 and 7 values.
class MatrixRegisters {
public:
    explicit MatrixRegisters(int64_t last_tokens) {
        struct {
            uint8_t palette = 1;
            uint8_t start = 0;
            uint8_t reserved[14] = {};
            uint16_t bytes[16] = {};
            uint8_t rows[16] = {};
        } layout;
        static_assert(sizeof(layout) == 64);
        for (int i = 0; i < 8; ++i) {
            layout.bytes[i] = 64;
            layout.rows[i] = i >= 3 && i < 6 && last_tokens > 0 ? static_cast<uint8_t>(last_tokens) : 16;
        }
        asm volatile("ldtilecfg %0" : : "m"(layout));
    }
    ~MatrixRegisters() { asm volatile("tilerelease"); }
    MatrixRegisters(const MatrixRegisters &) = delete;
    MatrixRegisters &operator=(const MatrixRegisters &) = delete;

    template <int To>
    static SEEDDELTA_INLINE void load(const void *from, int64_t stride) {
        asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(To) : "memory");
    }
    template <int From>
    static SEEDDELTA_INLINE void store(void *to, int64_t stride) {
        asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(From) : "memory");
    }
    // Sums of products of signed bytes: token by token the four columns of each row, 16 times. `First`: from 0 on.
    template <int Sums, int Inputs, int Values, bool First>
    static SEEDDELTA_INLINE void multiply() {
        if constexpr (First) {
            asm volatile("tilezero %%tmm%c0" : : "i"(Sums));
        }
        asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(Sums), "i"(Inputs), "i"(Values));
    }
};

// `Words` are those of lanes.hpp without a bias.
template <class Words>
struct LaneMatrix {
    using Panel = LanePanel<Words>;
    using F = typename Words::F;
    static constexpr int64_t kTokens = kLaneMatrixTokens;
    static constexpr int64_t kColumns = kLaneMatrixColumns;
    static constexpr int64_t kGroupBytes = kGroup * kTileRows;
    static_assert(kGroup == 64 && kScaleGroups == 2 && kColumns % 128 == 0 && kTileRows == 16 && Words::kParts == 1 &&
                  Words::kBias == 0);

    uint8_t *panel; // [kColumns, kTileRows] decoded
    float *scale;   // [blocks of tokens, groups, kTokens] of the activations
    float *total;   // [tokens of all blocks, kTileRows]
    int64_t groups;

    LaneMatrix(const Activations &a, uint8_t *scratch)
        : panel(scratch), scale(reinterpret_cast<float *>(scratch + kColumns * kTileRows)), groups(a.stride / kGroup) {
        const int64_t tokens = (a.n_tokens + kTokens - 1) / kTokens * kTokens;
        for (int64_t n = 0; n < tokens; ++n) {
            float *to = scale + n / kTokens * groups * kTokens + n % kTokens;
            for (int64_t g = 0; g < groups; ++g) {
                to[g * kTokens] = n < a.n_tokens ? a.scale[n * groups + g] : 0.0F;
            }
        }
        total = scale + tokens * groups;
    }

    // The panel, groups [group, group + count) of the columns, for the block of tokens from `first` on, which are N at
    // most.
    template <int N, int Base>
    [[gnu::noinline]] void multiply(const Activations &a, int64_t first, int64_t group, int64_t count) const {
        alignas(64) int32_t sums[2][N][kTileRows];
        const int8_t *q = a.q + first * a.stride + group * kGroup;
        const float *s = scale + first * groups + group * kTokens;
        float *to = total + first * kTileRows;
        F out[N];
        unrolled<N>([&](int n) SEEDDELTA_INLINE_LAMBDA {
            out[n] = group == 0 ? Words::no_floats() : Words::load_floats(to + n * kTileRows);
        });
        // Those of scale number `i`.
        const auto products = [&]<int Turn>(int64_t i) SEEDDELTA_INLINE_LAMBDA {
            const int64_t g = i * kScaleGroups;
            MatrixRegisters::load<Base>(q + g * kGroup, a.stride);
            MatrixRegisters::load<6>(panel + g * kGroupBytes, kLaneBytes);
            MatrixRegisters::multiply<Base + 1 + Turn, Base, 6, true>();
            if (g + 1 < count) {
                MatrixRegisters::load<Base>(q + (g + 1) * kGroup, a.stride);
                MatrixRegisters::load<7>(panel + (g + 1) * kGroupBytes, kLaneBytes);
                MatrixRegisters::multiply<Base + 1 + Turn, Base, 7, false>();
            }
            MatrixRegisters::store<Base + 1 + Turn>(sums[Turn], sizeof(sums[Turn][0]));
        };
        const auto add = [&](int turn, int64_t i) SEEDDELTA_INLINE_LAMBDA {
            unrolled<N>([&](int n) SEEDDELTA_INLINE_LAMBDA {
                const auto sum = Words::load(reinterpret_cast<const uint8_t *>(sums[turn][n]));
                out[n] = Words::add_group(out[n], sum, s[i * kScaleGroups * kTokens + n]);
            });
        };
        // sums are stored long before they are loaded
        const int64_t scales = (count + kScaleGroups - 1) / kScaleGroups;
        products.template operator()<0>(0);
        for (int64_t i = 0; i < scales; i += 2) {
            if (i + 1 < scales) {
                products.template operator()<1>(i + 1);
            }
            add(0, i);
            if (i + 2 < scales) {
                products.template operator()<0>(i + 2);
            }
            if (i + 1 < scales) {
                add(1, i + 1);
            }
        }
        unrolled<N>([&](int n) SEEDDELTA_INLINE_LAMBDA { Words::store_rows(to + n * kTileRows, out[n]); });
    }

    // A tile for all tokens.
    template <class Pattern>
    void tile(const seeddelta_ctx &ctx, const uint8_t *codes, const Activations &a) const {
        constexpr int64_t columns_a_chunk = kStreams * Pattern::kDotGroups;
        typename Panel::Codes before(codes, Pattern::loop_line(ctx.lane_lines));
        int64_t chunks = ctx.lane_lines / Pattern::kLines;
        for (int64_t group = 0; chunks > 0; group += kColumns / kGroup) {
            const int64_t count = std::min(chunks, kColumns / columns_a_chunk);
            codes = Panel::template decode<Pattern>(codes, *ctx.lane_code, before, count, panel);
            chunks -= count;
            // what is left of the last group meets activations of 0
            const int64_t decoded = (count * columns_a_chunk + kGroup - 1) / kGroup;
            for (int64_t first = 0; first < a.n_tokens; first += kTokens) {
                const int64_t rest = a.n_tokens - first;
                if (rest >= kTokens) {
                    multiply<kTokens, 0>(a, first, group, decoded);
                } else if (rest > kTokens / 2) {
                    multiply<kTokens, 3>(a, first, group, decoded);
                } else {
                    multiply<kTokens / 2, 3>(a, first, group, decoded);
                }
            }
        }
    }
};

// All tokens at once; their activations need no packing.
template <class Arch, class Words>
bool lanes_compute_matrix(const seeddelta_ctx &ctx, const Activations &a, int64_t tile_begin, int64_t tile_end,
                          uint8_t *scratch, float *y, int64_t y_stride) {
    using Matrix = LaneMatrix<Words>;
    const MatrixRegisters registers(a.n_tokens % Matrix::kTokens);
    const Matrix matrix(a, scratch);
    Exponents<Arch> exponents;
    const uint8_t *codes = ctx.codes + tile_begin * ctx.tile_bytes();
    for (int64_t tile = tile_begin; tile < tile_end; ++tile, codes += ctx.tile_bytes()) {
        with_pattern(*ctx.lane_code, [&]<class Pattern>() { matrix.template tile<Pattern>(ctx, codes, a); });
        finish_lanes<Arch>(ctx, a, tile, 0, a.n_tokens, reinterpret_cast<const float(*)[kTileRows]>(matrix.total), y,
                           y_stride, exponents);
    }
    return exponents.finite();
}

} // namespace
} // namespace seeddelta
