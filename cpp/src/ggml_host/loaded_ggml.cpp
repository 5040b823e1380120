#include "ggml_host/loaded_ggml.hpp"

#include <utility>

#include "ggml_host/graph_hook.hpp"
#include "ggml_host/self_test.hpp"

namespace seeddelta {

LoadedGgml::LoadedGgml(std::map<std::string, uintptr_t> addresses)
    : addresses_(std::move(addresses)), abi_(probe_ggml(addresses_, &GraphHook::compute)),
      self_tests_(test_products(addresses_, abi_)) {}

const AttentionAbi &LoadedGgml::attention() const {
    const std::scoped_lock lock(mutex_);
    if (!attention_) {
        const AttentionAbi found = probe_attention(addresses_, abi_);
        self_tests_ += test_attention(addresses_, abi_, found);
        attention_ = found;
    }
    return *attention_;
}

int LoadedGgml::self_tests() const {
    const std::scoped_lock lock(mutex_);
    return self_tests_;
}

std::vector<std::string> LoadedGgml::symbols() {
    std::vector<std::string> all;
    for (const auto *names :
         {&ggml_required_symbols(), &ggml_known_symbols(), &attention_required_symbols(), &self_test_symbols()}) {
        all.insert(all.end(), names->begin(), names->end());
    }
    return all;
}

} // namespace seeddelta
