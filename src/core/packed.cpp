// Elements of half a byte, as bytes and back.
#include "core/packed.hpp"

#include <limits>

#include "core/message.hpp"

namespace tilewise::core {
namespace {

/// Twice a number; the largest one where 64 bits don't suffice, which whoever checks the extent reports.
std::int64_t doubled(std::int64_t number) {
  std::int64_t result = 0;
  return __builtin_mul_overflow(number, 2, &result) ? std::numeric_limits<std::int64_t>::max() - 1 : result;
}

/// The last dimension of stride 1, or -1.
int last_contiguous(const TensorView& view) {
  int axis = view.rank - 1;
  while (axis >= 0 && stride_at(view, axis) != 1) --axis;
  return axis;
}

}  // namespace

void check_packed(const TensorView& view, const ArgumentName& name) {
  if (!is_packed(view.dtype)) return;
  int packed = -1;
  for (int axis = 0; axis < view.rank; ++axis) {
    const std::int64_t stride = stride_at(view, axis);
    if (size_at(view, axis) <= 1 || stride % 2 == 0) continue;
    if (stride != 1 || packed >= 0) {
      invalid_argument(name, ": strides of ", to_string(view.dtype),
                       " must be even but for one of 1, since two elements share a byte (got stride ", stride,
                       " in dimension ", axis, packed >= 0 ? concat(" beside dimension ", packed) : std::string(), ")");
    }
    packed = axis;
  }
}

TensorView bytes_of(const TensorView& packed) {
  TensorView view = packed;
  view.dtype = DType::u8;
  // The last such dimension: others have a stride of 1 where they or the tensor hold one element at most.
  const int pairs = last_contiguous(view);
  for (int axis = 0; axis < view.rank; ++axis) {
    const auto a = static_cast<std::size_t>(axis);
    if (axis == pairs) {
      view.shape[a] = view.shape[a] / 2 + view.shape[a] % 2;
    } else if (view.strides[a] != 1) {
      view.strides[a] /= 2;
    }
  }
  return view;
}

TensorView elements_of_pairs(const TensorView& pairs, std::string_view name) {
  int packed = last_contiguous(pairs);
  // Without a second pair along the last dimension its stride says nothing.
  if (packed < 0 && pairs.rank > 0 && size_at(pairs, pairs.rank - 1) <= 1) packed = pairs.rank - 1;
  if (packed < 0) invalid_argument(name, ": pairs of fp4_e2m1 must be contiguous along a dimension (got none)");
  TensorView view = pairs;
  view.dtype = DType::fp4_e2m1;
  for (int axis = 0; axis < view.rank; ++axis) {
    const auto a = static_cast<std::size_t>(axis);
    if (axis == packed) {
      view.shape[a] = doubled(view.shape[a]);
      view.strides[a] = 1;
    } else {
      view.strides[a] = doubled(view.strides[a]);
    }
  }
  return view;
}

}  // namespace tilewise::core
