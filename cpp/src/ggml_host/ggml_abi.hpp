// What the graph hook knows about the llama.cpp that Python has loaded. No ggml header and no link to ggml: the
// functions come by address, the layout of ggml_tensor is learned by probing (abi_probe.cpp).
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace seeddelta {

// The loaded library does not look as expected. The message says which probe failed.
class AbiProbeError : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

// Signature of ggml_custom_op_t (ggml.h): every thread of the pool calls it with its number.
using CustomFunction = void (*)(void *dst, int ith, int nth, void *userdata);
// Signature of ggml_to_float_t: k values of a row, any ggml type.
using ToFloatFunction = void (*)(const void *row, float *out, int64_t k);

inline constexpr int32_t kTypeF32 = 0; // ggml type numbers are part of the GGUF format
inline constexpr int32_t kTypeF16 = 1;
inline constexpr int32_t kTypeI32 = 26;
inline constexpr int32_t kTypeBF16 = 30;
inline constexpr size_t kMaxName = 64; // GGML_MAX_NAME of every release so far; the probe needs that much room

// What the probe saw of one operation, and what we understand of it. See node_form.hpp.
struct NodeForm {
    std::vector<uint8_t> bytes; // from the field behind `op` to the sources
    std::vector<uint8_t> known; // 1: understood, or without meaning for the result
    int sources = 0;            // that have a meaning; others must be absent
    size_t hint = 0;            // offset in ggml_tensor of a precision; 0: there is none
};

// A type of data that stands in the place of a converted tensor's.
struct PlaceholderType {
    int32_t number = 0;
    int64_t block = 0; // values a block
    int64_t bytes = 0; // of a block
};

// Offsets in bytes inside ggml_tensor, numbers of the operations, and how a custom operation stores its parameters.
struct GgmlAbi {
    size_t overhead = 0; // ggml_tensor_overhead(): no search goes beyond it
    size_t type = 0;
    size_t ne = 0;
    size_t nb = 0;
    size_t op = 0;
    size_t src = 0;
    size_t view_src = 0; // behind the last source, followed by an offset and `data`
    size_t flags = 0;    // int32: input, output, …; no meaning for a result
    size_t data = 0;
    size_t name = 0;
    int32_t op_none = 0;
    int32_t op_mul_mat = 0;
    int32_t op_mul_mat_id = 0;
    int32_t op_get_rows = 0;
    int32_t op_custom = 0;
    size_t params = 0;          // where the parameters of a custom operation begin
    size_t params_userdata = 0; // of the userdata, from `params`
    size_t params_function = 0; // of the function
    NodeForm form_mul_mat, form_mul_mat_id, form_get_rows;
    std::vector<uint8_t> params_custom; // a template: our function, all threads, userdata to be filled in

    const char *(*op_name)(int32_t) = nullptr;
    int64_t (*block_size)(int32_t) = nullptr;
    size_t (*type_size)(int32_t) = nullptr;
    const void *(*type_traits)(int32_t) = nullptr;
    size_t to_float = 0;                       // in ggml_type_traits
    std::vector<PlaceholderType> placeholders; // smallest first; the last one fits every tensor

    template <class T>
    static T read(const void *tensor, size_t offset) {
        T value;
        std::memcpy(&value, static_cast<const uint8_t *>(tensor) + offset, sizeof(T));
        return value;
    }
    int32_t type_of(const void *t) const { return read<int32_t>(t, type); }
    int32_t op_of(const void *t) const { return read<int32_t>(t, op); }
    int64_t ne_of(const void *t, int i) const { return read<int64_t>(t, ne + 8 * static_cast<size_t>(i)); }
    int64_t nb_of(const void *t, int i) const { return read<int64_t>(t, nb + 8 * static_cast<size_t>(i)); }
    void *src_of(const void *t, int i) const { return read<void *>(t, src + sizeof(void *) * static_cast<size_t>(i)); }
    int n_src() const { return static_cast<int>((view_src - src) / sizeof(void *)); }
    size_t params_begin() const { return op + sizeof(int32_t); }
    // The tensor whose data a view lies in, or the tensor itself.
    const void *root_of(const void *t) const {
        const auto *root = read<const void *>(t, view_src);
        return root == nullptr ? t : root;
    }
    void *data_of(const void *t) const { return read<void *>(t, data); }
    const char *name_of(const void *t) const { return static_cast<const char *>(t) + name; }

    // Makes the node a custom operation that calls our function with `userdata`.
    void make_custom(void *node, const void *userdata) const {
        uint8_t *at = static_cast<uint8_t *>(node) + params;
        std::memcpy(at, params_custom.data(), params_custom.size());
        std::memcpy(at + params_userdata, &userdata, sizeof(userdata));
        std::memcpy(static_cast<uint8_t *>(node) + op, &op_custom, sizeof(op_custom));
    }

    // The same with another function.
    void make_custom(void *node, CustomFunction function, const void *userdata) const {
        make_custom(node, userdata);
        std::memcpy(static_cast<uint8_t *>(node) + params + params_function, &function, sizeof(function));
    }

    // Whether the node is a custom operation with that function.
    bool is_custom(const void *node, CustomFunction function) const {
        return op_of(node) == op_custom && read<CustomFunction>(node, params + params_function) == function;
    }

    // Userdata of a node that make_custom made.
    const void *custom_userdata(const void *node) const { return read<const void *>(node, params + params_userdata); }

    // The smallest type for the placeholder of a tensor of so many columns that llama.cpp computes with where it has
    // mapped it.
    const PlaceholderType &placeholder(int64_t n_in) const {
        size_t at = 0;
        while (n_in % placeholders[at].block != 0) {
            ++at;
        }
        return placeholders[at];
    }

    // Row widening of a type; null when it has none (F32).
    ToFloatFunction to_float_of(int32_t kind) const { return read<ToFloatFunction>(type_traits(kind), to_float); }
};

// Learns the layout. `symbols` maps the names of ggml_required_symbols and of those ggml_known_symbols that there are
// to addresses; `function` is what custom operations shall call. Throws AbiProbeError; never reads beyond
// ggml_tensor_overhead() bytes of a tensor.
GgmlAbi probe_ggml(const std::map<std::string, uintptr_t> &symbols, CustomFunction function);

// Names of the ggml functions that the probe needs.
const std::vector<std::string> &ggml_required_symbols();

// Names of functions that tell which types the library has.
const std::vector<std::string> &ggml_known_symbols();

} // namespace seeddelta
