#include "ggml_host/add_weights.hpp"

#include <unordered_map>
#include <unordered_set>

namespace seeddelta {

namespace {

bool is_sparse(const CheckedWeight &weight) {
    return !weight.is_column() && weight.ctx().scheme == ResidualScheme::proc_sparse;
}

std::unique_ptr<Operator> operator_of(const NamedWeight &named, const GateSpec *gate) {
    if (const auto *columns = std::get_if<const ColumnWeight *>(&named.weight)) {
        return column_operator(**columns, gate);
    }
    const CheckedWeight &weight = *std::get<const CheckedWeight *>(named.weight);
    if (weight.is_column()) {
        return column_operator(weight.columns(), gate);
    }
    return is_sparse(weight) ? proc_operator(weight.ctx(), gate) : row_operator(weight.ctx());
}

} // namespace

std::vector<Names> add_weights(WeightRegistry &registry, const SkipSettings &settings, const ModelNames &model,
                               const std::vector<NamedWeight> &weights) {
    std::vector<Skippable> matrices;
    std::unordered_set<std::string> rows;
    for (const NamedWeight &named : weights) {
        if (const auto *columns = std::get_if<const ColumnWeight *>(&named.weight)) {
            matrices.push_back(Skippable::of(named.name, **columns));
            continue;
        }
        const CheckedWeight &weight = *std::get<const CheckedWeight *>(named.weight);
        if (weight.is_column() || is_sparse(weight)) {
            matrices.push_back(Skippable::of(named.name, weight));
        } else {
            rows.insert(named.name);
        }
    }
    std::unordered_map<std::string, const GateSpec *> gate_of;
    std::vector<Names> groups;
    for (PlannedGate &gate : plan_gates(settings, model, matrices, rows)) {
        const GateSpec *spec = registry.add_gate(gate.spec, std::move(gate.norms));
        for (const std::string &name : gate.group) {
            gate_of[name] = spec;
        }
        groups.push_back(std::move(gate.group));
    }
    for (const NamedWeight &named : weights) {
        const auto gate = gate_of.find(named.name);
        registry.add(named.name, operator_of(named, gate == gate_of.end() ? nullptr : gate->second));
    }
    return groups;
}

} // namespace seeddelta
