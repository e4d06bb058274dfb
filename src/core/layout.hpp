// Where a layout keeps its batch, sequence and head dimensions.
#pragma once

#include <array>
#include <cstdint>

#include "device/common/params.h"
#include "tilewise/problem.hpp"

namespace tilewise::core {

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

[[nodiscard]] inline std::int64_t size_at(const TensorView& view, int axis) {
  return view.shape[static_cast<std::size_t>(axis)];
}
[[nodiscard]] inline std::int64_t stride_at(const TensorView& view, int axis) {
  return view.strides[static_cast<std::size_t>(axis)];
}

/// The view as kernels see it: [batch, seq, head, dim].
[[nodiscard]] inline device::Tensor4 tensor4(const TensorView& view, Axes axes) {
  if (!view.defined()) return {};
  return {view.data, axes.batch < 0 ? 0 : stride_at(view, axes.batch), stride_at(view, axes.seq),
          stride_at(view, axes.head)};
}

/// A log-sum-exp as kernels see it: from [batch, head, seq], or [head, total] where `packed`.
[[nodiscard]] inline device::LseTensor lse_tensor(const TensorView& view, bool packed) {
  if (!view.defined()) return {};
  const int head = packed ? 0 : 1;
  return {static_cast<float*>(view.data), packed ? 0 : view.strides[0], stride_at(view, head),
          stride_at(view, head + 1)};
}

}  // namespace tilewise::core
