// Sizes of arrays are computed here, once, with every product checked.
#include "array.hpp"

#include <algorithm>
#include <limits>

#include "core/message.hpp"
#include "core/packed.hpp"

namespace tilewise::tools {
namespace {

/// The contiguous view of a shape, without data, and its bytes. Throws where a stride or the
/// product leaves 63 bits.
struct Extent {
  TensorView view;
  std::size_t bytes;
};

Extent measure(DType dtype, std::span<const std::int64_t> shape, std::string_view name) {
  Extent extent{};
  extent.view.dtype = dtype;
  extent.view.rank = static_cast<int>(shape.size());
  std::int64_t stride = 1, bytes = 0;
  bool fits = shape.size() <= static_cast<std::size_t>(kMaxRank);
  for (std::size_t d = shape.size(); fits && d-- > 0;) {
    extent.view.shape[d] = shape[d];
    extent.view.strides[d] = stride;
    fits = shape[d] >= 0 && !__builtin_mul_overflow(stride, std::max<std::int64_t>(shape[d], 1), &stride);
    if (core::is_packed(dtype)) fits = fits && !__builtin_add_overflow(stride, stride % 2, &stride);  // whole bytes
  }
  const std::int64_t units = core::is_packed(dtype) ? stride / 2 + stride % 2 : stride;
  const std::int64_t size = core::is_packed(dtype) ? 1 : static_cast<std::int64_t>(size_of(dtype));
  fits = fits && !__builtin_mul_overflow(units, size, &bytes);
  if (!fits) {
    core::invalid_argument(name, ": shape must have <= ", kMaxRank, " dimensions and < 2^63 bytes (got ",
                           print_shape(shape), ")");
  }
  extent.bytes = std::ranges::find(shape, 0) != shape.end() ? 0 : static_cast<std::size_t>(bytes);
  return extent;
}

}  // namespace

Array::Array(DType dtype, std::span<const std::int64_t> shape, std::string_view name) {
  const Extent extent = measure(dtype, shape, name);
  bytes_.resize(extent.bytes);
  view_ = extent.view;
  view_.data = bytes_.data();
}

Array::Array(DType dtype, std::span<const std::int64_t> shape, Bytes bytes, std::string_view name)
    : bytes_(std::move(bytes)) {
  const Extent extent = measure(dtype, shape, name);
  if (extent.bytes != bytes_.size()) {
    core::invalid_argument(name, ": data of shape ", print_shape(shape), " must be ", extent.bytes, " bytes (got ",
                           bytes_.size(), ")");
  }
  view_ = extent.view;
  view_.data = bytes_.data();
}

Array zeros_like(const TensorView& view, std::string_view name) { return Array(view.dtype, shape_of(view), name); }

std::string print_shape(std::span<const std::int64_t> shape) {
  std::string text;
  for (const std::int64_t extent : shape) core::append(text, core::concat(text.empty() ? "" : ", ", extent));
  return core::concat("(", text, shape.size() == 1 ? ",)" : ")");
}

}  // namespace tilewise::tools
