// What is wrong with a model file, or with what is asked of it.
#pragma once
#include <stdexcept>
#include <string>

namespace seeddelta {

// Whose fault it is: the file's, there is none, the original model's, or that of the settings; or there is no room for
// a file in memory, or no memory.
enum class Fault { format, missing, original, settings, room, memory };

// The message names the file, the tensor or key where there is one, and the remedy; it is one line.
class ModelFileError : public std::runtime_error {
public:
    explicit ModelFileError(const std::string &what, Fault fault = Fault::format)
        : std::runtime_error(what), fault_(fault) {}
    Fault fault() const { return fault_; }

private:
    Fault fault_;
};

} // namespace seeddelta
