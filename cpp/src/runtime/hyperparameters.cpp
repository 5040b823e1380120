#include "runtime/hyperparameters.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "ggml_host/ggml_abi.hpp"
#include "gguf/cursor.hpp"
#include "gguf/ggml_types.hpp"

namespace seeddelta {

namespace {

constexpr size_t kAlignment = 32; // of tensors: TENSOR_ALIGNMENT, ggml/src/ggml-backend.cpp
constexpr int kMostLayers = 512;  // LLAMA_MAX_LAYERS, src/llama-hparams.h
constexpr std::string_view kScalings[] = {"none", "linear", "yarn", "longrope"}; // LLAMA_ROPE_SCALING_TYPES
constexpr uint64_t kShown = 4;                                                   // numbers in a message

[[noreturn]] void refuse(const Header &header, const std::string &key, const std::string &what) {
    header.fail(key + " " + what + "; the file is corrupt, build it again");
}

std::string text_of(double value) {
    std::array<char, 32> text{};
    static_cast<void>(std::snprintf(text.data(), text.size(), "%.9g", value));
    return text.data();
}

// A hyperparameter: a number, or one for each layer. 0 where there is none.
struct Numbers {
    const Header &header;
    std::string key;
    double first = 0.0, largest = 0.0;
    bool any_wrong = false; // negative, infinite or NaN
    std::string shown = "0";

    Numbers(const Header &of, const std::string &name) : header(of), key(name) {
        const Value *value = header.value(key);
        if (value == nullptr) {
            return;
        }
        Cursor cursor(header.path(), value->bytes);
        ValueType type = value->type;
        uint64_t count = 1;
        if (type == ValueType::array) {
            type = static_cast<ValueType>(std::min(cursor.number<uint32_t>(key), kValueTypes));
            count = cursor.number<uint64_t>(key);
        }
        if (count == 0 || type == ValueType::text || static_cast<uint32_t>(type) >= kValueTypes) {
            refuse(header, key, "is no number");
        }
        for (uint64_t i = 0; i < count; ++i) {
            const double number = read_number(cursor, type, key);
            first = i == 0 ? number : first;
            largest = i == 0 || !(number <= largest || std::isnan(largest)) ? number : largest;
            any_wrong |= !(std::isfinite(number) && number >= 0);
            if (i < kShown) {
                shown = (i == 0 ? "" : shown + ", ") + text_of(number);
            }
        }
    }

    void require(bool holds, const std::string &what) const {
        if (!holds) {
            refuse(header, key, what + ", and is " + shown);
        }
    }
};

void check_experts(const Header &header, const std::string &prefix) {
    const Numbers count(header, prefix + "expert_count"), used(header, prefix + "expert_used_count");
    const Numbers groups(header, prefix + "expert_group_count");
    used.require(used.largest <= count.largest, "must be at most expert_count, " + text_of(count.largest));
    used.require(used.largest > 0 || count.largest == 0, "must be above 0");
    groups.require(groups.largest == 0 || groups.largest < count.largest,
                   "must be below expert_count, " + text_of(count.largest));
    if (groups.largest > 1) {
        groups.require(std::fmod(count.largest, groups.largest) == 0,
                       "must divide expert_count, " + text_of(count.largest));
        const Numbers chosen(header, prefix + "expert_group_used_count");
        chosen.require(0 < chosen.largest && chosen.largest < groups.largest,
                       "must be between 1 and " + text_of(groups.largest - 1));
    }
}

} // namespace

double largest_number(const Header &header, const std::string &key) {
    return Numbers(header, key).largest;
}

void check_hyperparameters(const Header &header) {
    if (header.alignment() % kAlignment != 0) {
        refuse(header, "general.alignment",
               "must be a multiple of " + std::to_string(kAlignment) + ", and is " +
                   std::to_string(header.alignment()));
    }
    const std::string prefix = header.text("general.architecture").value_or("") + ".";
    if (header.value(prefix + "block_count") != nullptr) {
        const Numbers layers(header, prefix + "block_count");
        layers.require(0 < layers.first && layers.first <= kMostLayers,
                       "must be between 1 and " + std::to_string(kMostLayers));
    }
    check_experts(header, prefix);
    for (const char *name : {"layer_norm_rms_epsilon", "layer_norm_epsilon", "group_norm_epsilon"}) {
        const Numbers epsilon(header, prefix + "attention." + name);
        epsilon.require(!epsilon.any_wrong, "must be 0 or more");
    }
    const std::string key = prefix + "rope.scaling.type";
    const std::string scaling = header.text(key).value_or("linear");
    if (std::find(std::begin(kScalings), std::end(kScalings), scaling) == std::end(kScalings)) {
        refuse(header, key, "is '" + scaling.substr(0, 20) + "', which llama.cpp does not know");
    }
}

// F32, and what is looked up: I8 to I64.
void check_vector(const std::string &path, const std::string &name, const std::vector<int64_t> &ne, uint32_t type) {
    const bool computed = type == static_cast<uint32_t>(kTypeF32) || (type >= 24 && type <= 27);
    if (ne.size() == 1 && !computed) {
        throw ModelFileError(path + ": the tensor '" + name + "' has one dimension and is " + ggml_type(type)->name +
                             ", which llama.cpp does not compute with; the file is corrupt, build it again");
    }
}

void check_loadable(const Header &header) {
    check_hyperparameters(header);
    for (const TensorInfo &tensor : header.tensors()) {
        if (tensor.name.find("norm") != std::string::npos || tensor.name.ends_with(".bias")) {
            check_vector(header.path(), tensor.name, tensor.ne, tensor.type);
        }
    }
}

} // namespace seeddelta
