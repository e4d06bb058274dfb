// Which layouts the shapes of q, k and v allow.
#include "operations/attention/layout_advice.hpp"

#include "operations/layout.hpp"

namespace tilewise::operations::attention {
namespace {

using namespace core;

/// Whether the shapes agree with each other in this layout, the numbers of heads above all; batch sizes apart.
bool fits_without_batch(Layout layout, const TensorView& q, const TensorView& k, const TensorView& v) {
  const Axes axes = axes_of(layout);
  for (const TensorView* view : {&q, &k, &v}) {
    if (view->rank != axes.rank()) return false;
  }
  const std::int64_t heads_q = size_at(q, axes.head), heads_k = size_at(k, axes.head);
  if (heads_q < 1 || heads_k < 1 || heads_q % heads_k != 0 || size_at(v, axes.head) != heads_k) return false;
  return size_at(k, axes.seq) == size_at(v, axes.seq) && size_at(q, axes.dim) == size_at(k, axes.dim);
}

bool fits(Layout layout, const TensorView& q, const TensorView& k, const TensorView& v) {
  if (!fits_without_batch(layout, q, k, v)) return false;
  const int batch = axes_of(layout).batch;
  return batch < 0 || (size_at(q, batch) == size_at(k, batch) && size_at(k, batch) == size_at(v, batch));
}

}  // namespace

std::string layout_advice(Layout given, const TensorView& q, const TensorView& k, const TensorView& v,
                          bool with_cu_seqlens) {
  // Where batch sizes alone differ, they are what is wrong: some other layout nearly always fits too.
  if (fits_without_batch(given, q, k, v)) return {};
  std::string possible;
  for (std::size_t i = 0; i < kNamesOf<Layout>.size(); ++i) {
    const auto layout = static_cast<Layout>(i);
    if (!fits(layout, q, k, v) || (layout == Layout::thd && !with_cu_seqlens)) continue;
    possible += concat(possible.empty() ? "" : " or ", name_of(layout));
  }
  return possible.empty() ? possible : "; q, k and v fit layout=" + possible;
}

}  // namespace tilewise::operations::attention
