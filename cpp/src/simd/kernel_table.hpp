// What every instruction set provides. One table a unit; the scalar table is the definition the others are tested
// against.
#pragma once
#include "simd/attention_kernels.hpp"
#include "simd/encode_kernels.hpp"
#include "simd/linear_kernels.hpp"

namespace seeddelta {

struct GatingKernels {
    // How many of n scores (0 or more) are above a threshold.
    int64_t (*count_above)(const int32_t *score, int64_t n, int32_t threshold);
    // Bit i of pos (neg) says x[i] > eps (x[i] < -eps); the bits from n on are 0.
    void (*bitmaps)(const float *x, int64_t n, float eps, uint64_t *pos, uint64_t *neg);
    int64_t (*popcount)(const uint64_t *words, int64_t n);
};

struct KernelTable {
    const char *name;
    LinearKernels linear;
    AttentionKernels attention;
    GatingKernels gating;
    EncodeKernels encode;
};

const KernelTable &kernels_scalar();
// One an instruction-set unit; defined where the unit is compiled (SEEDDELTA_HAVE_<NAME>).
const KernelTable &kernels_ssse3();
const KernelTable &kernels_avx2();
const KernelTable &kernels_avxvnni();
const KernelTable &kernels_avx512bw();
const KernelTable &kernels_avx512vnni();
const KernelTable &kernels_avx512();
const KernelTable &kernels_amx();
const KernelTable &kernels_neon();
const KernelTable &kernels_neon_dotprod();

// The table in use.
const KernelTable &kernels();

} // namespace seeddelta
