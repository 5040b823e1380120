#include "ggml_host/hook_error.hpp"

namespace seeddelta {

std::string HookError::text() const {
    const std::string name = "tensor '" + tensor + "'";
    switch (kind) {
    case HookErrorKind::not_finite:
        return name + ": NaN or infinity in its " + detail + "; " + kGiveFallback +
               ", or build this tensor with more bits";
    case HookErrorKind::dense_not_finite:
        return name + ": NaN or infinity, also with the dense fallback; the model or the prompt is at fault";
    case HookErrorKind::no_memory:
        return detail;
    case HookErrorKind::bad_index:
        return name + " is asked for a row or an expert that it does not have";
    case HookErrorKind::layout:
        return name + " " + detail;
    default:
        return name + " is used by " + detail + ", which is not served";
    }
}

} // namespace seeddelta
