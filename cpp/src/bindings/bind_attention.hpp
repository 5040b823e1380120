// Attention for Python, one operation at a time.
#pragma once
#include <pybind11/pybind11.h>
#include <pybind11/typing.h>

#include "attention/key_selector.hpp"

namespace seeddelta {

void bind_attention(pybind11::module_ &m);
// Called by bind_attention.
void bind_attention_run(pybind11::module_ &m);

} // namespace seeddelta
