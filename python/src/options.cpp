// AttentionOptions in Python.
#include "options.hpp"

#include <string>
#include <tuple>
#include <vector>

#include "attention_options.hpp"
#include "bindings.hpp"
#include "core/names.hpp"

namespace tilewise::python {
namespace {

constexpr auto kAttentionKeywords = std::tuple_cat(kAttentionOptions, kScoreFunctions);

}  // namespace

void bind_options(nb::module_& module) {
  module.def("layout_names",
             [] { return std::vector<std::string>(core::kNamesOf<Layout>.begin(), core::kNamesOf<Layout>.end()); });
  OptionsBinding<kAttentionKeywords, AttentionOptions>::define(
      module, "AttentionOptions", "Everything about a call that is not q, k, v or an output.");
}

}  // namespace tilewise::python
