// Matrices stored by their inputs, for products that skip some of them: all outputs of one input are together.
// A unit is one input of the product: a neuron of ffn_down, a channel of the other matrices.
//
// y_o = sum over the active units j of x_j W_oj. Units that are not active count as inputs of 0: skipping is a choice
// of inputs, never another arithmetic, so that a product with all units active is the dense product bit for bit.
#pragma once
#include <cstdint>

namespace seeddelta {

struct LaneCode;

enum class ColumnKind : uint32_t { f16 = 0, lanes = 1 };

// Outputs that one thread's slice is a multiple of.
inline constexpr int64_t kOutputSlice = 64;

// W [n_out, n_in] as W transposed: unit j has its n_out weights in a row of its own. All pointers are borrowed.
struct ColumnWeight {
    ColumnKind kind = ColumnKind::f16;
    int64_t n_out = 0;
    int64_t n_in = 0;

    // f16: so many strips of outputs one after another, [n_in, outputs of the strip] each: what a thread reads is
    // one stretch of memory. Strip i of them has what thread i of as many computes.
    int strips = 1;
    const uint16_t *f16 = nullptr; // bits
    // lanes: W_oj = input_scale[j] * v_jo. The base scale is part of it.
    const float *input_scale = nullptr; // [n_in]

    // lanes: v_j are the strips of unit j (format/column_lanes.hpp)
    const LaneCode *lane_code = nullptr;
    const uint8_t *codes = nullptr;
    // lanes: signs and Hadamard transform along the outputs (format/rotation.hpp): y = R^T (sum of the
    // units). 0: none
    uint32_t rotation_block = 0;
    uint64_t rotation_seed = 0;

    // f16: a ternary weight in place of each, by rows, for products of signs (PackSpec::aggressive): bits of the
    // positive and of the negative ones, [n_out, 2, n_in / 64 rounded up], and the magnitude of a row's, [n_out]
    const uint64_t *sign_bits = nullptr;
    const float *sign_gamma = nullptr;

    // Outputs with padding: whole slices.
    int64_t positions() const { return (n_out + kOutputSlice - 1) / kOutputSlice * kOutputSlice; }
};

// The units that one token computes, ascending, and their inputs. Every way of skipping hands one over.
struct ActiveSet {
    int64_t n = 0;
    const int32_t *index = nullptr; // [n]
    const float *value = nullptr;   // [n]
};

inline constexpr int64_t kListStep = 4;               // units of byte lanes that a kernel takes at a time, at least
inline constexpr int64_t kListAhead = 64;             // how many units before it asks for them
inline constexpr int64_t kListMore = kListAhead + 16; // entries behind a list: a kernel takes 16 units at most

// Active inputs times input_scale, rounded to integers in groups of 64 positions (of all n_in, not of the active ones):
// what byte lanes by columns are multiplied with. Inputs that are not active are 0 and not listed.
struct ColumnInput {
    int64_t n = 0;
    // [n] ascending; null for all, or each group filled up to a multiple of kListStep by its last unit times 0, and
    // behind the list the first kListMore of it again, for the next strip: each plus n_in
    const int32_t *index = nullptr;
    const int8_t *q = nullptr;      // [n] of the listed units
    int64_t n_groups = 0;           // n_in / 64, rounded up
    const int32_t *begin = nullptr; // [n_groups + 1] where each group's units are in index and q
    const float *scale = nullptr;   // [n_groups]
    const int32_t *bias = nullptr;  // [n_groups] -kValueBias times the sum of a group's q
};

// y [n_out] = W x for the active units of one token, on the calling thread.
void columns_compute_active(const ColumnWeight &w, const ActiveSet &active, float *y);

class Gate;
class Workspace;
struct ComputeStatus;

// What one product did. Equal for all threads once the product is done.
struct ColumnCounts {
    int64_t active = 0; // inputs computed, of all tokens
    int64_t total = 0;  // inputs that there were
};

// Makes room for a product of `threads` threads, so that computing it allocates nothing. Returns the bytes of scratch
// that each thread needs. Throws std::bad_alloc. Not thread safe.
int64_t columns_reserve(const ColumnWeight &w, bool gated, int64_t n_tokens, int threads, Workspace &workspace);

// Asks the memory for what a product of all units begins with. False when there is nothing to ask for.
bool columns_prefetch(const ColumnWeight &w, int ith, int nth);

// y = W x over the inputs that `gate` chooses; null: all of them. All nth threads of one product call this with the
// same arguments but ith; x and y are float32 with the given strides in bytes between tokens. With reuse_selection the
// choice of the previous product of this workspace holds: x, n_in and gate must be the same. Contains a spin barrier;
// y is whole, and the workspace free for the next product, once all threads have left. A gate with events, or with
// checks of KWTA, needs `state` [n_out], which is this weight's and no other's from one product to the next.
ColumnCounts columns_compute_threaded(const ColumnWeight &w, Gate *gate, const float *x, int64_t n_tokens,
                                      int64_t x_stride_bytes, float *y, int64_t y_stride_bytes, Workspace &workspace,
                                      int ith, int nth, bool reuse_selection, ComputeStatus &status,
                                      float *state = nullptr);

} // namespace seeddelta
