// merge and its gradients on Arrays.
#include "operations/merge/merge.hpp"

#include "bindings.hpp"
#include "by_schema.hpp"

namespace tilewise::python {

void bind_merge(nb::module_& module) {
  using operations::Merge;
  CallBinding<Merge, MergeArguments>::define(
      module,
      "Writes the merge of partial results over disjoint keys: lists of them, or one stacked array in each list.");
  CallBinding<Merge, MergeBackwardArguments>::define(
      module, "Writes the gradients of merge that are given; an empty list is not wanted.");
}

}  // namespace tilewise::python
