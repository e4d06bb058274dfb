// What operations on [batch, seq, head, dim] tensors share: where a layout keeps these dimensions, expected shapes,
// and such tensors as kernels see them.
#pragma once

#include <array>
#include <cstdint>

#include "core/names.hpp"
#include "core/tensor_checks.hpp"
#include "device/common/params.h"
#include "tilewise/layout.hpp"

namespace tilewise {

template <>
inline constexpr std::array<std::string_view, 4> core::kNamesOf<Layout>{"bshd", "sbhd", "bhsd", "thd"};

namespace operations {

/// Positions in a tensor's shape; `dim` is always last. thd has no batch (-1).
struct Axes {
  int batch, seq, head, dim;
  [[nodiscard]] constexpr int rank() const { return dim + 1; }
};

[[nodiscard]] constexpr Axes axes_of(Layout layout) {
  switch (layout) {
    case Layout::bshd:
      return {0, 1, 2, 3};
    case Layout::sbhd:
      return {1, 0, 2, 3};
    case Layout::bhsd:
      return {0, 2, 1, 3};
    case Layout::thd:
      break;
  }
  return {-1, 0, 1, 2};
}

/// The shape of a q-like tensor: [batch, seq, heads, dim] in the order of `layout`; thd has no batch.
[[nodiscard]] inline core::Shape tensor_shape(Layout layout, core::Dim batch, core::Dim seq, core::Dim heads,
                                              core::Dim dim) {
  const Axes axes = axes_of(layout);
  core::Shape shape;
  shape.rank = axes.rank();
  if (axes.batch >= 0) shape.dims[static_cast<std::size_t>(axes.batch)] = batch;
  shape.dims[static_cast<std::size_t>(axes.seq)] = seq;
  shape.dims[static_cast<std::size_t>(axes.head)] = heads;
  shape.dims[static_cast<std::size_t>(axes.dim)] = dim;
  return shape;
}

/// The view as kernels see it: [batch, seq, head, dim].
[[nodiscard]] inline device::Tensor4 tensor4(const TensorView& view, Axes axes) {
  if (!view.defined()) return {};
  return {view.data, axes.batch < 0 ? 0 : core::stride_at(view, axes.batch), core::stride_at(view, axes.seq),
          core::stride_at(view, axes.head)};
}

/// A log-sum-exp as kernels see it: from [batch, head, seq], or [head, total] where `packed`.
[[nodiscard]] inline device::LseTensor lse_tensor(const TensorView& view, bool packed) {
  if (!view.defined()) return {};
  const int head = packed ? 0 : 1;
  return {static_cast<float*>(view.data), packed ? 0 : view.strides[0], core::stride_at(view, head),
          core::stride_at(view, head + 1)};
}

}  // namespace operations
}  // namespace tilewise
