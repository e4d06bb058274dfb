// Options: AttentionOptions from Python values, with the arrays it borrows kept alive; and the
// names of layouts, masks and alignments, which the torch operators share.
#pragma once

#include <nanobind/nanobind.h>

#include <string_view>
#include <vector>

#include "array.hpp"
#include "tilewise/attention.hpp"

namespace tilewise::python {

/// The values called by these names; they throw Error listing the known ones. A mask is "none",
/// "causal" or "causal_top_left", and the last one also sets the alignment.
[[nodiscard]] Layout layout_named(std::string_view name);
void set_mask(std::string_view mask, std::string_view alignment, AttentionOptions* options);

struct Options {
  AttentionOptions value;
  std::vector<Array> arrays;  ///< what the views in `value` borrow from
};

void bind_options(nb::module_& module);

}  // namespace tilewise::python
