#include "runtime/dense_matrices.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>

#include "gguf/ggml_types.hpp"
#include "runtime/hyperparameters.hpp"

namespace seeddelta {

namespace {

constexpr double kGemma3nCaches = 20; // layers with a K/V cache of their own, src/models/gemma3n.cpp

// Layers that llama.cpp's graph has, and those of them with keys and values of their own, as
// python/seeddelta/gguf/targets.py says it: without blocks that predict further tokens.
struct Layers {
    double all, cached;

    explicit Layers(const Header &model) {
        const std::string architecture = model.text("general.architecture").value_or("");
        const auto number = [&](const char *key) { return largest_number(model, architecture + "." + key); };
        const double count = number("block_count");
        all = count == 0 ? INFINITY : count - number("nextn_predict_layers");
        cached = architecture == "gemma3n" ? kGemma3nCaches : all - number("attention.shared_kv_layers");
    }
    // Whether blk.3.ffn_down is used, by its parts.
    bool have(std::string_view layer, std::string_view matrix) const {
        int64_t number = INT64_MAX; // what does not fit
        std::from_chars(layer.data() + layer.find('.') + 1, layer.data() + layer.size() - 1, number);
        return static_cast<double>(number) < (matrix == "attn_k" || matrix == "attn_v" ? std::min(all, cached) : all);
    }
};

} // namespace

DenseRows rows_of(const Header &model, const TensorInfo &info, const GgmlAbi &abi) {
    const GgmlType &type = *ggml_type(info.type);
    const auto number = static_cast<int32_t>(info.type);
    const bool known =
        abi.block_size(number) == type.block && static_cast<int64_t>(abi.type_size(number)) == type.bytes;
    if (!known || (number != kTypeF32 && abi.to_float_of(number) == nullptr)) {
        model.fail("tensor '" + info.name + "' has the type " + type.name +
                       ", which this llama.cpp cannot dequantize; convert the model to F16",
                   Fault::original);
    }
    return {.data = info.data(),
            .row_bytes = info.ne[0] / type.block * type.bytes,
            .widen = number == kTypeF32 ? nullptr : abi.to_float_of(number)};
}

std::vector<const TensorInfo *> column_targets(const Header &model, const Names &targets) {
    const Layers layers(model);
    std::vector<const TensorInfo *> found;
    Names missing = targets;
    for (const TensorInfo &tensor : model.tensors()) {
        const auto [layer, matrix] = split_name(tensor.name);
        if (matrix.empty() || tensor.ne.size() != 2 || tensor.ne[1] == 1 || !is_matrix(tensor.name) ||
            !layers.have(layer, matrix)) {
            continue;
        }
        const auto names = [&matrix = matrix](const std::string &target) { return is_named(matrix, target); };
        std::erase_if(missing, names);
        if (std::any_of(targets.begin(), targets.end(), names)) {
            found.push_back(&tensor);
        }
    }
    if (!missing.empty()) {
        model.fail("no matrix of the layers can be stored by columns for " + missing.front() +
                       "; look with seeddelta inspect",
                   Fault::original);
    }
    return found;
}

DenseColumns columns_of(const Header &model, const TensorInfo &info, const GgmlAbi &abi, bool signs) {
    const DenseRows source = rows_of(model, info, abi);
    const int64_t n_in = info.ne[0];
    const auto read = [&](int64_t begin, int64_t end, float *out) {
        for (int64_t row = begin; row < end; ++row, out += n_in) {
            if (!source.read(row, out, n_in)) {
                const auto *wrong = std::find_if_not(out, out + n_in, [](float x) { return std::isfinite(x); });
                model.fail("tensor '" + info.name + "' has " + (std::isnan(*wrong) ? "nan" : "inf") + " at row " +
                               std::to_string(row) + ", column " + std::to_string(wrong - out) +
                               "; the model is damaged, download or convert it again",
                           Fault::original);
            }
        }
    };
    try {
        DenseColumns made(info.name, info.ne[1], n_in, read, signs);
        info.file->give_back(info.offset, info.bytes);
        return made;
    } catch (const std::invalid_argument &error) {
        model.fail(std::string(error.what()) +
                       "; leave it out with --column-targets, or convert the model (seeddelta build --layout column)",
                   Fault::original);
    }
}

} // namespace seeddelta
