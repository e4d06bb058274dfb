// The KV cache step for Python.
#pragma once

#include <nanobind/nanobind.h>

namespace tilewise::python {

void bind_kv_cache(nanobind::module_& module);

}  // namespace tilewise::python
