// What is wrong with a model file, or with what is asked of it.
#pragma once
#include <stdexcept>
#include <string>

namespace seeddelta {

// The message names the file, the tensor or key where there is one, and the remedy; it is one line.
class ModelFileError : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

} // namespace seeddelta
