// Which matrices a value is of: by name, group of matrices, or shell pattern; and which of them read the same input.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

namespace seeddelta {

enum class Target : uint8_t { mlp, attn, both, kv };

// {pattern, value}; the last one that fits holds.
using Values = std::vector<std::pair<std::string, double>>;
using Names = std::vector<std::string>;

// A shell pattern of *, ? and [set], as Python's fnmatchcase has it.
bool fits_pattern(std::string_view pattern, std::string_view text);

// Whether llama.cpp multiplies by a tensor of this name, or looks rows up in it, if its shape is a matrix's. The rule
// is that of its quantizer (tensor_allows_quantization, src/llama-quant.cpp) without what that leaves alone for its
// size.
bool is_matrix(std::string_view name);
// {"blk.3.", "ffn_down"} of blk.3.ffn_down.weight; empty for what is in no layer.
std::pair<std::string_view, std::string_view> split_name(std::string_view name);
// Whether a matrix of a layer has this name, or its role is in the group of this name.
bool is_named(std::string_view matrix, std::string_view target);

// Whether matrices that read one input are in the target.
bool in_target(const Names &group, Target target);
// The last value whose pattern fits one of them; none outside of the target, too.
std::optional<double> value_of(const Names &group, const Values &values, Target target);

// Matrices that read the same input together, in the order of llama.cpp's graph, every other one alone. So is each of
// those that have one of `rows` among them: a product by rows in between leaves no choice to share.
std::vector<Names> input_groups(const Names &matrices, const std::unordered_set<std::string> &rows);

// Whether the inputs of a matrix come out of a (squared) ReLU, and so are often exactly 0. `names` are all tensors.
class ZeroInputs {
public:
    ZeroInputs(std::string_view architecture, const Names &names);
    bool has(const std::string &matrix) const { return found_.contains(matrix); }

private:
    std::unordered_set<std::string> found_;
};

} // namespace seeddelta
