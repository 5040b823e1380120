// What llama.cpp asserts of a model: where it does not hold it ends the process, and refuses no file.
#pragma once
#include "gguf/header.hpp"

namespace seeddelta {

// Throws ModelFileError for what the asserts of llama_model_base::load_hparams (src/llama-model.cpp) and of the
// normalizations (ggml/src/ggml-cpu/ops.cpp) do not survive. A key that is missing is llama.cpp's to refuse.
void check_hyperparameters(const Header &header);

// Throws ModelFileError for a tensor of one dimension that ggml's additions and products of vectors abort on.
void check_vector(const std::string &path, const std::string &name, const std::vector<int64_t> &ne, uint32_t type);

// Both, of a model that llama.cpp loads as it is.
void check_loadable(const Header &header);

// The largest of a hyperparameter's numbers, one or one for each layer; 0 where there is none. Throws ModelFileError.
double largest_number(const Header &header, const std::string &key);

} // namespace seeddelta
