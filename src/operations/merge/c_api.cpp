// The C interface of merge.
#include "core/c_api.hpp"
#include "operations/layout.hpp"
#include "tilewise/attention.hpp"

using namespace tilewise;  // the functions below are C's
using namespace tilewise::core::c;

tilewise_status tilewise_merge(const DLTensor* const* outs, const DLTensor* const* lses, size_t count,
                               const DLTensor* sink, const DLTensor* out, const DLTensor* softmax_lse,
                               tilewise_layout layout) {
  return guarded([&] {
    tilewise::merge(views_of(outs, count, "outs"), views_of(lses, count, "lses"), view_of(sink, "sink"),
                    view_of(out, "out"), view_of(softmax_lse, "softmax_lse"),
                    core::value_at<Layout>("layout", static_cast<std::int32_t>(layout)));
  });
}
