#include <sstream>
#include <stdexcept>

#include "seeddelta/make_weight.hpp"

namespace seeddelta {

static std::string type_text(const Array &a) {
    const std::string bits = std::to_string(8 * a.item_size);
    switch (a.kind) {
    case 0:
        return "of nothing";
    case 'f':
        return "float" + bits;
    case 'i':
        return "int" + bits;
    case 'u':
        return "uint" + bits;
    case 'c':
        return "complex" + bits;
    default:
        return a.kind == 'b' ? "bool" : std::string(1, a.kind) + std::to_string(a.item_size);
    }
}

static std::string lengths_text(const std::vector<int64_t> &lengths) {
    std::ostringstream text;
    for (size_t i = 0; i < lengths.size(); ++i) {
        text << (i > 0 ? ", " : "") << (lengths[i] < 0 ? "n" : std::to_string(lengths[i]));
    }
    return "[" + text.str() + "]";
}

std::string Array::shape_text() const {
    return lengths_text(shape);
}

static bool has_shape(const Array &a, const std::vector<int64_t> &wanted) {
    bool fits = a.shape.size() == wanted.size();
    for (size_t i = 0; fits && i < wanted.size(); ++i) {
        fits = wanted[i] < 0 || a.shape[i] == wanted[i];
    }
    return fits;
}

void require_array(const Array &a, const char *name, const char *kinds, int64_t item_size,
                   std::initializer_list<int64_t> shape) {
    std::string wrong;
    if (std::string(kinds).find(a.kind) == std::string::npos || a.item_size != item_size) {
        wrong = "dtype " + type_text(a);
    } else if (!a.contiguous) {
        wrong = "a layout that is not C-contiguous";
    } else if (reinterpret_cast<uintptr_t>(a.data) % static_cast<uintptr_t>(item_size) != 0) {
        wrong = "an address that is not a multiple of its item size";
    } else if (!has_shape(a, shape)) {
        wrong = "shape " + a.shape_text();
    } else {
        return;
    }
    throw std::invalid_argument(std::string(name) + " has " + wrong + "; wanted " + kinds +
                                std::to_string(8 * item_size) + " " + lengths_text(shape));
}

} // namespace seeddelta
