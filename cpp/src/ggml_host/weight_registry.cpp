#include "ggml_host/weight_registry.hpp"

#include <stdexcept>

namespace seeddelta {

RegisteredWeight &WeightRegistry::add(const std::string &name, const seeddelta_ctx &ctx) {
    if (find(name) != nullptr) {
        throw std::invalid_argument("the weight '" + name + "' is registered already");
    }
    RegisteredWeight &weight = weights_.emplace_back();
    weight.name = name;
    weight.ctx = &ctx;
    by_name_.emplace(weight.name, &weight); // the key is the string inside the deque, which never moves
    return weight;
}

RegisteredWeight &WeightRegistry::add(const std::string &name, const ColumnWeight &columns, const GateSpec *gate) {
    RegisteredWeight &weight = add(name, seeddelta_ctx{});
    weight.shape.n_out = columns.n_out;
    weight.shape.n_in = columns.n_in;
    weight.ctx = &weight.shape;
    weight.columns = &columns;
    weight.gate = gate;
    return weight;
}

RegisteredWeight *WeightRegistry::find(std::string_view name) {
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? nullptr : found->second;
}

} // namespace seeddelta
