#include "ggml_host/weight_registry.hpp"

#include <stdexcept>

namespace seeddelta {

RegisteredWeight &WeightRegistry::add(const std::string &name, std::unique_ptr<Operator> op) {
    if (find(name) != nullptr) {
        throw std::invalid_argument("the weight '" + name + "' is registered already");
    }
    RegisteredWeight &weight = weights_.emplace_back();
    weight.name = name;
    weight.op = std::move(op);
    by_name_.emplace(weight.name, &weight); // the key is the string inside the deque, which never moves
    return weight;
}

RegisteredWeight *WeightRegistry::find(std::string_view name) {
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? nullptr : found->second;
}

} // namespace seeddelta
