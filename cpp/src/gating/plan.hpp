// From the settings of skipping to what chooses the inputs of each group of matrices of a model.
#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "gating/compose.hpp"
#include "gating/settings.hpp"
#include "seeddelta/make_weight.hpp"

namespace seeddelta {

// A matrix whose inputs can be skipped.
struct Skippable {
    std::string name;
    int64_t n_out = 0;
    int64_t n_in = 0;
    int block = 1;          // inputs that are read together
    bool by_column = false; // else it is proc_sparse
    std::function<std::vector<float>()> norms;

    // One by columns, or a proc_sparse one; what is given must outlive it.
    static Skippable of(const std::string &name, const CheckedWeight &weight);
    static Skippable of(const std::string &name, const ColumnWeight &columns);
};

// Norms of a matrix's columns, [n_in]. Of byte lanes by columns those that the scales say: hundreds of values of a code
// have nearly the same norm (of 576, within 0.3% on average).
std::vector<float> input_norms(const CheckedWeight &weight);

struct PlannedGate {
    Names group; // matrices that share it
    GateSpec spec;
    std::vector<float> norms; // for spec.kwta.norm, which is not set; empty: none
};

struct ModelNames {
    std::string path;
    std::string architecture;
    Names tensors; // all
};

// The gates of a model, in order. `rows` are the matrices that are multiplied by rows. Throws std::invalid_argument for
// a model without such matrices and for a kwta file of another one.
std::vector<PlannedGate> plan_gates(const SkipSettings &settings, const ModelNames &model,
                                    const std::vector<Skippable> &matrices,
                                    const std::unordered_set<std::string> &rows);

} // namespace seeddelta
