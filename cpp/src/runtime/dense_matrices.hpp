// Matrices of an ordinary model: their rows as float32, and those that are stored by columns when it is loaded.
#pragma once
#include <vector>

#include "gating/patterns.hpp"
#include "ggml_host/ggml_abi.hpp"
#include "gguf/header.hpp"
#include "linear/operator.hpp"
#include "seeddelta/make_weight.hpp"

namespace seeddelta {

// Throws ModelFileError for a type that the loaded ggml cannot dequantize.
DenseRows rows_of(const Header &model, const TensorInfo &info, const GgmlAbi &abi);

// Matrices of the layers, without experts, that llama.cpp's graph uses and a target names, in file order. Throws
// ModelFileError for a target that names none.
std::vector<const TensorInfo *> column_targets(const Header &model, const Names &targets);

// The matrix by columns (seeddelta/make_weight.hpp). Throws ModelFileError.
DenseColumns columns_of(const Header &model, const TensorInfo &info, const GgmlAbi &abi, bool signs);

} // namespace seeddelta
