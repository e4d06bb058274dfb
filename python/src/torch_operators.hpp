// The torch operators tilewise::attention_forward, attention_forward_out and attention_backward
// as boxed C++ kernels on torch's stable C interface.
#pragma once

#include <nanobind/nanobind.h>

namespace tilewise::python {

void bind_torch_operators(nanobind::module_& module);

}  // namespace tilewise::python
