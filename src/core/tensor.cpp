// Sizes of element types, and TensorView's constructors.
#include "tilewise/tensor.hpp"

#include <algorithm>
#include <limits>

#include "core/foreign_dtype.hpp"
#include "core/message.hpp"
#include "core/names.hpp"

namespace tilewise {
namespace {

constexpr std::array<std::uint8_t, core::kNamesOf<DType>.size()> kBits{0, 32, 16, 16, 64, 8, 8, 32, 64, 8, 8, 8, 4};

[[noreturn, gnu::cold, gnu::noinline]] void refuse_parts_of_bytes(DType dtype, std::size_t bits) {
  core::invalid_argument("dtype: must have elements of whole bytes here (got ", to_string(dtype), ", ", bits, " bits)");
}

int checked_rank(std::size_t rank) {
  if (rank > std::size_t{kMaxRank}) core::invalid_argument("tensor: rank must be <= ", kMaxRank, " (got ", rank, ")");
  return static_cast<int>(rank);
}

}  // namespace

std::size_t bits_of(DType dtype) noexcept { return core::is_named(dtype) ? kBits[static_cast<std::size_t>(dtype)] : 0; }
std::size_t size_of(DType dtype) {
  const std::size_t bits = core::is_named(dtype) ? kBits[static_cast<std::size_t>(dtype)] : 0;  // every call asks
  if (bits % 8 != 0) refuse_parts_of_bytes(dtype, bits);
  return bits / 8;
}
std::string_view to_string(DType dtype) noexcept {
  if (core::is_named(dtype)) return core::name_of(dtype);
  const std::string_view foreign = core::foreign_name(dtype);
  return foreign.empty() ? "unknown" : foreign;
}
std::string_view to_string(DeviceType type) noexcept { return core::name_of(type); }

TensorView::TensorView(void* memory, DType element, std::initializer_list<std::int64_t> sizes, Device where)
    : data(memory), dtype(element), device(where), rank(checked_rank(sizes.size())) {
  std::copy(sizes.begin(), sizes.end(), shape.begin());
  std::int64_t stride = 1;
  for (int axis = rank - 1; axis >= 0; --axis) {
    const auto i = static_cast<std::size_t>(axis);
    strides[i] = stride;
    // An overflowing shape is reported by whoever checks the tensor's extent; here it only must not wrap.
    if (__builtin_mul_overflow(stride, shape[i] > 0 ? shape[i] : 1, &stride)) {
      stride = std::numeric_limits<std::int64_t>::max();
    }
  }
}

TensorView::TensorView(void* memory, DType element, std::initializer_list<std::int64_t> sizes,
                       std::initializer_list<std::int64_t> steps, Device where)
    : data(memory), dtype(element), device(where), rank(checked_rank(sizes.size())) {
  if (sizes.size() != steps.size()) {
    core::invalid_argument("tensor: strides must have as many entries as shape (got ", steps.size(), " and ",
                           sizes.size(), ")");
  }
  std::copy(sizes.begin(), sizes.end(), shape.begin());
  std::copy(steps.begin(), steps.end(), strides.begin());
}

std::int64_t TensorView::numel() const noexcept {
  std::int64_t count = 1;
  bool overflow = false;
  for (std::size_t i = 0; i < static_cast<std::size_t>(rank); ++i) {
    if (shape[i] == 0) return 0;
    overflow |= __builtin_mul_overflow(count, shape[i], &count);
  }
  return overflow ? std::numeric_limits<std::int64_t>::max() : count;
}

std::string describe(const TensorView& view) {
  std::string text{to_string(view.dtype)};
  text += '[';
  for (int axis = 0; axis < view.rank; ++axis) {
    if (axis > 0) text += ", ";
    core::append(text, view.shape[static_cast<std::size_t>(axis)]);
  }
  return text += ']';
}

}  // namespace tilewise
