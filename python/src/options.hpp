// Options: AttentionOptions from Python values, with the arrays it borrows kept alive; and the
// names of layouts, which the torch operators share.
#pragma once

#include <nanobind/nanobind.h>

#include <string_view>
#include <vector>

#include "array.hpp"
#include "tilewise/attention.hpp"

namespace tilewise::python {

/// The layout called `name`; throws Error listing the known ones.
[[nodiscard]] Layout layout_named(std::string_view name);

struct Options {
  AttentionOptions value;
  std::vector<Array> arrays;  ///< what the views in `value` borrow from
};

void bind_options(nb::module_& module);

}  // namespace tilewise::python
