// Split models: parts NAME-00001-of-0000N.gguf with keys split.*, as llama-gguf-split makes them. The first part has
// all metadata; each has a tensor table and the data of its own tensors.
#include <unistd.h>

#include "gguf/error.hpp"
#include "gguf/header.hpp"

namespace seeddelta {

static constexpr size_t kSuffix = sizeof("-00001-of-00001.gguf") - 1;
static constexpr int64_t kMostParts = 99999;

static std::string part_suffix(int64_t number, int64_t count) {
    const auto five = [](int64_t value) {
        const std::string digits = std::to_string(value);
        return std::string(digits.size() < 5 ? 5 - digits.size() : 0, '0') + digits;
    };
    return std::string("-").append(five(number + 1)).append("-of-").append(five(count)).append(".gguf");
}

void Header::append(Header &&part) {
    for (TensorInfo &tensor : part.tensors_) {
        if (!tensor_at_.emplace(tensor.name, tensors_.size()).second) {
            part.fail("tensor '" + tensor.name + "' is in another part, too; download the model again");
        }
        tensors_.push_back(std::move(tensor));
    }
    files_.push_back(std::move(part.files_.front()));
}

void Header::join(const Mapped &mapped) {
    const int64_t count = *whole("split.count");
    const int64_t number = whole("split.no").value_or(0);
    const std::string name = path();
    if (count > kMostParts || number < 0 || number >= count || name.size() <= kSuffix ||
        name.substr(name.size() - kSuffix) != part_suffix(number, count)) {
        fail("is one of " + std::to_string(count) + " parts of a model but is not named " + "NAME" +
             part_suffix(number, count) + "; give all parts the names that they had");
    }
    const std::string stem = name.substr(0, name.size() - kSuffix);
    for (int64_t i = 0; i < count; ++i) {
        if (const std::string part = stem + part_suffix(i, count); access(part.c_str(), F_OK) != 0) {
            fail(part.substr(part.rfind('/') + 1) + " of the same model is missing; put all parts into one folder");
        }
    }
    std::vector<Header> parts;
    for (int64_t i = 0; i < count; ++i) {
        parts.push_back(i == number ? std::move(*this) : read_one(stem + part_suffix(i, count), mapped));
        const Header &one = parts.back();
        if (one.whole("split.count").value_or(1) != count || one.whole("split.no").value_or(0) != i) {
            one.fail("is not part " + std::to_string(i + 1) + " of " + std::to_string(count) +
                     "; download the model again");
        }
    }
    Header whole_model = std::move(parts.front());
    for (size_t i = 1; i < parts.size(); ++i) {
        whole_model.append(std::move(parts[i]));
    }
    const auto total = whole_model.whole("split.tensors.count");
    const auto found = static_cast<int64_t>(whole_model.tensors_.size());
    if (total.value_or(found) != found) {
        whole_model.fail("the parts have " + std::to_string(found) + " tensors of " + std::to_string(*total) +
                         "; download them again");
    }
    whole_model.forget("split.");
    *this = std::move(whole_model);
}

} // namespace seeddelta
