// The table of what the module tilewise._core consists of. Each part adds its functions and classes.
#pragma once

#include <nanobind/nanobind.h>

#include <array>

namespace tilewise::python {

using Bind = void(nanobind::module_& module);

Bind bind_array;
Bind bind_expression;
Bind bind_captured;
Bind bind_block_mask;
Bind bind_options;
Bind bind_attention;
Bind bind_kv_cache;
Bind bind_schemas;
Bind bind_explain;
Bind bind_torch_operators;
Bind bind_jax_operators;

/// In the order of binding: a class comes before what takes it.
inline constexpr std::array kParts{
    &bind_array,    &bind_expression, &bind_captured, &bind_block_mask,      &bind_options,       &bind_attention,
    &bind_kv_cache, &bind_schemas,    &bind_explain,  &bind_torch_operators, &bind_jax_operators,
};

}  // namespace tilewise::python
