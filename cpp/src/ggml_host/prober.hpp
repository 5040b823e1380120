// Tensors made through ggml's public functions, in memory of our own, and searches of their bytes.
#pragma once
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "ggml_host/ggml_abi.hpp"

namespace seeddelta {

// ggml_init_params of ggml.h, passed by value. That it was understood is checked with ggml_get_mem_size and _no_alloc.
struct InitParams {
    size_t mem_size;
    void *mem_buffer;
    bool no_alloc;
};

[[noreturn]] inline void fail(const std::string &what) {
    throw AbiProbeError(what);
}

class Symbols {
public:
    explicit Symbols(const std::map<std::string, uintptr_t> &table) : table_(table) {}

    template <class F>
    F get(const char *name) const {
        const auto found = table_.find(name);
        if (found == table_.end() || found->second == 0) {
            fail(std::string("the function ") + name + " is missing");
        }
        return reinterpret_cast<F>(found->second);
    }

private:
    const std::map<std::string, uintptr_t> &table_;
};

class Prober {
public:
    explicit Prober(const Symbols &symbols)
        : free_(symbols.get<void (*)(void *)>("ggml_free")),
          new_tensor_(
              symbols.get<void *(*)(void *, int32_t, int64_t, int64_t, int64_t, int64_t)>("ggml_new_tensor_4d")),
          memory_(kMemory / sizeof(uint64_t) + 8) {
        overhead_ = symbols.get<size_t (*)()>("ggml_tensor_overhead")();
        if (overhead_ < 128 || overhead_ > 4096) {
            fail("ggml_tensor_overhead() is " + std::to_string(overhead_));
        }
        auto address = reinterpret_cast<uintptr_t>(memory_.data());
        begin_ = reinterpret_cast<uint8_t *>((address + 63) / 64 * 64);
        context_ = symbols.get<void *(*)(InitParams)>("ggml_init")({kMemory, begin_, false});
        if (context_ == nullptr) {
            fail("ggml_init returned NULL");
        }
        if (symbols.get<size_t (*)(const void *)>("ggml_get_mem_size")(context_) != kMemory ||
            symbols.get<bool (*)(const void *)>("ggml_get_no_alloc")(context_)) {
            free_(context_);
            fail("ggml_init does not take its parameters as expected");
        }
    }
    ~Prober() { free_(context_); }
    Prober(const Prober &) = delete;
    Prober &operator=(const Prober &) = delete;

    void *context() const { return context_; }
    size_t overhead() const { return overhead_; }

    // Every tensor must lie in our memory with room behind it: this is what bounds the searches.
    void *checked(void *tensor, const char *what) const {
        auto *at = static_cast<uint8_t *>(tensor);
        if (at < begin_ || at + overhead_ > begin_ + kMemory) {
            fail(std::string(what) + " is not where ggml_init was told to put it");
        }
        return tensor;
    }
    void *tensor(int32_t type, int64_t ne0, int64_t ne1, int64_t ne2 = 1, int64_t ne3 = 1) const {
        return checked(new_tensor_(context_, type, ne0, ne1, ne2, ne3), "a tensor of ggml_new_tensor_4d");
    }

    // The one offset, a multiple of `step`, where `matches` holds.
    size_t find(const char *field, size_t size, size_t step, const std::function<bool(size_t)> &matches) const {
        size_t found = 0;
        int count = 0;
        for (size_t offset = 0; offset + size <= overhead_; offset += step) {
            if (matches(offset)) {
                found = offset;
                ++count;
            }
        }
        if (count != 1) {
            fail(std::string("field '") + field + "' of ggml_tensor was found in " + std::to_string(count) + " places");
        }
        return found;
    }

private:
    static constexpr size_t kMemory = size_t{256} * 1024;
    void (*free_)(void *);
    void *(*new_tensor_)(void *, int32_t, int64_t, int64_t, int64_t, int64_t);
    std::vector<uint64_t> memory_;
    uint8_t *begin_ = nullptr;
    void *context_ = nullptr;
    size_t overhead_ = 0;
};

inline bool bytes_at(const void *tensor, size_t offset, const void *wanted, size_t size) {
    return std::memcmp(static_cast<const uint8_t *>(tensor) + offset, wanted, size) == 0;
}

} // namespace seeddelta
