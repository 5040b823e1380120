// What the tables of all units have in the same words. Include inside an instruction-set unit only.
#pragma once
#include "simd/activations.hpp"
#include "simd/attention_prompt.hpp"
#include "simd/columns.hpp"
#include "simd/columns_scalar.hpp"
#include "simd/compute.hpp"
#include "simd/feedback.hpp"
#include "simd/kernel_table.hpp"
#include "simd/lane_search.hpp"
#include "simd/lane_strips.hpp"

namespace seeddelta {
namespace {

template <class Arch, class Words, class Columns>
constexpr LinearKernels linear_simd() {
    return {.rotate = rotate_simd<Arch>,
            .rotate_back = rotate_back_simd<Arch>,
            .quantize = quantize_simd<Arch>,
            .prepare = prepare_simd<Arch>,
            .compute = compute_simd<Arch, Words>,
            .columns_f16 = columns_f16_simd<Arch, Columns>,
            .columns_f16_batch = columns_f16_batch_simd<Arch, Columns>,
            .columns_lanes = columns_lanes_simd<Words>,
            .columns_lanes_many = columns_lanes_many_simd<Words>};
}

// The choice of keys; the rest is the scalar table's.
template <class Arch, class Ops>
AttentionKernels choice_simd() {
    AttentionKernels t = attention_scalar();
    t.estimate = estimate_simd<Arch, Ops>;
    t.nearness = nearness_simd<Arch>;
    t.count = count_simd<Arch>;
    t.above = above_simd<Arch>;
    t.mass = mass_simd<Arch>;
    return t;
}

// All but the sums over key bits. Panels may be made in narrower words.
template <class Arch, class Ops, class PanelArch = Arch, class PanelOps = Ops>
AttentionKernels attention_simd() {
    AttentionKernels t = choice_simd<Arch, Ops>();
    t.attend = attend_simd<Arch, Ops>;
    t.widen = widen_simd<PanelArch, PanelOps>;
    t.prompt = prompt_simd<Arch, Ops>;
    t.fused = true;
    return t;
}

} // namespace
} // namespace seeddelta
