// The ggml that a process has loaded, once it was probed and has computed as expected.
#pragma once
#include <mutex>
#include <optional>

#include "ggml_host/attention_abi.hpp"

namespace seeddelta {

class LoadedGgml {
public:
    // By the addresses of symbols(), those that there are. Probes, and computes products. Throws AbiProbeError.
    explicit LoadedGgml(std::map<std::string, uintptr_t> addresses);

    const GgmlAbi &abi() const { return abi_; }
    // What taking over attention needs: probed, and computed, when it is first asked for. Throws AbiProbeError.
    const AttentionAbi &attention() const;
    // Operations that were compared with ggml's own.
    int self_tests() const;

    static std::vector<std::string> symbols();

private:
    std::map<std::string, uintptr_t> addresses_;
    GgmlAbi abi_;
    mutable std::mutex mutex_; // of what follows
    mutable std::optional<AttentionAbi> attention_;
    mutable int self_tests_ = 0;
};

} // namespace seeddelta
