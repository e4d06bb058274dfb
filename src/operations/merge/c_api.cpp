// The C interface of merge.
#include "core/c_api.hpp"
#include "operations/layout.hpp"
#include "tilewise/c/merge.h"
#include "tilewise/merge.hpp"

using namespace tilewise;  // the functions below are C's
using namespace tilewise::core::c;

namespace {

Layout layout_of(tilewise_layout layout) { return core::value_at<Layout>("layout", static_cast<std::int32_t>(layout)); }

/// The gradients of `count` parts; empty where the caller wants none.
std::vector<TensorView> gradients_of(const DLTensor* const* tensors, std::size_t count, std::string_view name) {
  return tensors == nullptr ? std::vector<TensorView>{} : views_of(tensors, count, name);
}

}  // namespace

tilewise_status tilewise_merge(const DLTensor* const* outs, const DLTensor* const* lses, size_t count,
                               const DLTensor* sink, const DLTensor* out, const DLTensor* softmax_lse,
                               tilewise_layout layout) {
  return guarded([&] {
    merge(MergeArguments{views_of(outs, count, "outs"), views_of(lses, count, "lses"), view_of(sink, "sink"),
                         view_of(out, "out"), view_of(softmax_lse, "softmax_lse"), layout_of(layout)});
  });
}

tilewise_status tilewise_merge_backward(const tilewise_merge_backward_tensors* tensors, tilewise_layout layout) {
  return guarded([&] {
    const tilewise_merge_backward_tensors& t = *required(tensors, "tensors");
    merge_backward({view_of(t.dout, "dout"), view_of(t.dlse, "dlse"), views_of(t.outs, t.count, "outs"),
                    views_of(t.lses, t.count, "lses"), view_of(t.sink, "sink"), gradients_of(t.douts, t.count, "douts"),
                    gradients_of(t.dlses, t.count, "dlses"), view_of(t.dsink, "dsink"), layout_of(layout)});
  });
}
