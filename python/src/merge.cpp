// merge and its gradients on Arrays. Outputs are allocated by the caller, as those of attention.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <vector>

#include "array.hpp"
#include "bindings.hpp"
#include "core/num_threads.hpp"
#include "operations/layout.hpp"
#include "tilewise/merge.hpp"

namespace tilewise::python {
namespace {

using Arrays = std::vector<const Array*>;

std::vector<TensorView> views_of(const Arrays& arrays) {
  std::vector<TensorView> views;
  for (const Array* array : arrays) views.push_back(view_of(array));
  return views;
}

void* stream_pointer(std::uintptr_t stream) { return reinterpret_cast<void*>(stream); }

void forward(const Arrays& outs, const Arrays& lses, const Array* sink, const Array& out, const Array* softmax_lse,
             const std::string& layout, const std::string& implementation, int torch_threads, std::uintptr_t stream) {
  const MergeArguments arguments{views_of(outs), views_of(lses),       view_of(sink),
                                 out.view(),     view_of(softmax_lse), core::value_of<Layout>("layout", layout)};
  const nb::gil_scoped_release release;
  const core::FrameworkThreads threads(torch_threads);
  merge(arguments, {implementation}, stream_pointer(stream));
}

/// Gradients that are not wanted come as empty lists and None.
void backward(const Array& dout, const Array* dlse, const Arrays& outs, const Arrays& lses, const Array* sink,
              const Arrays& douts, const Arrays& dlses, const Array* dsink, const std::string& layout,
              const std::string& implementation, int torch_threads, std::uintptr_t stream) {
  const MergeBackwardArguments arguments{dout.view(),     view_of(dlse),  views_of(outs),
                                         views_of(lses),  view_of(sink),  views_of(douts),
                                         views_of(dlses), view_of(dsink), core::value_of<Layout>("layout", layout)};
  const nb::gil_scoped_release release;
  const core::FrameworkThreads threads(torch_threads);
  merge_backward(arguments, {implementation}, stream_pointer(stream));
}

}  // namespace

void bind_merge(nb::module_& module) {
  const auto optional = [](const char* name) { return nb::arg(name).none(); };
  module.def(
      "merge", &forward, nb::arg("outs"), nb::arg("lses"), optional("sink"), nb::arg("out"), optional("softmax_lse"),
      nb::arg("layout") = "bshd", nb::arg("implementation") = "", nb::arg("torch_threads") = 0, nb::arg("stream") = 0,
      "Writes the merge of partial results over disjoint keys: lists of them, or one stacked array in each list.");
  module.def("merge_backward", &backward, nb::arg("dout"), optional("dlse"), nb::arg("outs"), nb::arg("lses"),
             optional("sink"), nb::arg("douts"), nb::arg("dlses"), optional("dsink"), nb::arg("layout") = "bshd",
             nb::arg("implementation") = "", nb::arg("torch_threads") = 0, nb::arg("stream") = 0,
             "Writes the gradients of merge that are given; an empty list is not wanted.");
}

}  // namespace tilewise::python
