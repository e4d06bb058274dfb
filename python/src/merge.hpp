// Merge and its gradients for Python.
#pragma once

#include <nanobind/nanobind.h>

namespace tilewise::python {

void bind_merge(nanobind::module_& module);

}  // namespace tilewise::python
