// The attention functions as Python sees them: on Arrays, with the interpreter lock released.
#pragma once

#include <nanobind/nanobind.h>

namespace tilewise::python {

void bind_attention(nanobind::module_& module);
void bind_explain(nanobind::module_& module);

}  // namespace tilewise::python
