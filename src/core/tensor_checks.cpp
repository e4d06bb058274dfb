// Checks of one tensor argument.
#include "core/tensor_checks.hpp"

#include <algorithm>

#include "core/device.hpp"
#include "core/foreign_dtype.hpp"
#include "core/message.hpp"
#include "core/names.hpp"
#include "core/overlap.hpp"
#include "core/packed.hpp"

namespace tilewise::core {
namespace {

std::string list_text(const std::array<std::int64_t, kMaxRank>& values, int rank) {
  std::string text = "[";
  for (int axis = 0; axis < rank; ++axis) {
    if (axis > 0) text += ", ";
    append(text, values[static_cast<std::size_t>(axis)]);
  }
  return text += ']';
}

/// Adds the bytes between the first and the last element along one axis; true where 64 bits don't suffice.
bool grow_reach(std::int64_t size, std::int64_t stride, std::int64_t element, std::int64_t& low, std::int64_t& high) {
  std::int64_t reach = 0;
  if (__builtin_mul_overflow(size - 1, stride, &reach) || __builtin_mul_overflow(reach, element, &reach)) return true;
  std::int64_t& end = reach < 0 ? low : high;
  return __builtin_add_overflow(end, reach, &end);
}

/// How many elements there are.
std::int64_t check_extent(const TensorView& view, const ArgumentName& name) {
  const auto element = static_cast<std::int64_t>((bits_of(view.dtype) + 7) / 8);  // no less than it takes
  std::int64_t low = 0, high = 0, count = 1;
  bool overflow = false;
  for (int axis = 0; axis < view.rank; ++axis) {
    const std::int64_t size = size_at(view, axis);
    if (size < 0) invalid_argument(name, ": shape[", axis, "] must be >= 0 (got ", size, ")");
    if (size > 1) overflow |= grow_reach(size, stride_at(view, axis), element, low, high);
    overflow |= __builtin_mul_overflow(count, size, &count);
  }
  // An empty tensor addresses nothing, whatever its other dimensions multiply to.
  if (!overflow) return count;
  if (view.numel() == 0) return 0;
  invalid_argument(name, ": must span less than 2^63 bytes and elements (got shape ", list_text(view.shape, view.rank),
                   ", strides ", list_text(view.strides, view.rank), ")");
}

bool is_contiguous_along(const TensorView& view, int axis) {
  return size_at(view, axis) <= 1 || stride_at(view, axis) == 1 || view.numel() == 0;
}

/// None for what is written: a copy would not be the caller's.
std::string copy_advice(const ArgumentName& name, Access access) {
  if (access != Access::read) return {};
  return concat("; ", name, ".contiguous() in torch or numpy.ascontiguousarray(", name, ") makes it so");
}

}  // namespace

Shape::Shape(std::initializer_list<Dim> list) : rank(static_cast<int>(list.size())) {
  std::copy(list.begin(), list.end(), dims.begin());
}

void check_view(const TensorView& view, const ArgumentName& name, Device device, std::string_view anchor) {
  if (!view.defined()) invalid_argument(name, ": must be given");
  if (view.rank < 0 || view.rank > kMaxRank) {
    invalid_argument(name, ": rank must be 0 to ", kMaxRank, " (got ", view.rank, ")");
  }
  if (!is_named(view.dtype) && foreign_name(view.dtype).empty()) {
    invalid_type(name, ": dtype is no known one (got number ", static_cast<int>(view.dtype), ")");
  }
  if (view.device != device) {
    invalid_type(name, ": must be on ", device_name(device), ", where ", anchor, " is (got ", device_name(view.device),
                 ")");
  }
  if (check_extent(view, name) == 0) return;  // nothing is read or written, wherever it points
  check_packed(view, name);
  if (view.data == nullptr) {
    invalid_argument(name, ": data must not be null (shape ", list_text(view.shape, view.rank), ")");
  }
  const std::size_t size = bits_of(view.dtype) / 8;
  if (size == 0) return;  // packed, or a foreign type, which the check of the dtype refuses
  const std::size_t misalignment = reinterpret_cast<std::uintptr_t>(view.data) % size;
  if (misalignment != 0) {
    invalid_argument(name, ": data must be aligned to its element of ", size, " bytes (got an address ", misalignment,
                     " past one)");
  }
}

void refuse_dtype(const ArgumentName& name, std::string_view got) {
  std::string known;
  for (const std::string_view dtype : kNamesOf<DType>) {
    if (dtype != name_of(DType::none)) known += concat(known.empty() ? "" : ", ", dtype);
  }
  invalid_type(name, ": dtype must be one of ", known, " (got ", got, ")");
}

void check_dtype(const TensorView& view, const ArgumentName& name, DType expected) {
  if (view.dtype != expected) {
    invalid_type(name, ": dtype must be ", to_string(expected), " (got ", to_string(view.dtype), ")");
  }
}

void check_rank(const TensorView& view, const ArgumentName& name, int expected, std::string_view words) {
  if (view.rank != expected) {
    invalid_argument(name, ": rank must be ", expected, ", ", words, " (got ", view.rank, ", shape ",
                     list_text(view.shape, view.rank), ")");
  }
}

void check_shape(const TensorView& view, const ArgumentName& name, const Shape& expected) {
  bool same = view.rank == expected.rank;
  for (std::size_t i = 0; same && i < static_cast<std::size_t>(expected.rank); ++i) {
    same = view.shape[i] == expected.dims[i].size;
  }
  if (same) return;
  std::string words = "[", sizes = "[";
  for (std::size_t i = 0; i < static_cast<std::size_t>(expected.rank); ++i) {
    if (i > 0) words += ", ", sizes += ", ";
    append(words, expected.dims[i].name);
    append(sizes, expected.dims[i].size);
  }
  invalid_argument(name, ": shape must be ", words, "] = ", sizes, "] (got ", list_text(view.shape, view.rank), ")");
}

void check_contiguous_last(const TensorView& view, const ArgumentName& name, Access access) {
  const int last = view.rank - 1;
  if (is_contiguous_along(view, last)) return;
  invalid_argument(name, ": the last dimension must be contiguous, stride 1 (got stride ", stride_at(view, last), ")",
                   copy_advice(name, access));
}

int contiguous_of_last_two(const TensorView& view, const ArgumentName& name, Access access) {
  const int last = view.rank - 1;
  if (is_contiguous_along(view, last)) return last;
  if (is_contiguous_along(view, last - 1)) return last - 1;
  invalid_argument(name, ": one of the last two dimensions must be contiguous, stride 1 (got strides ",
                   stride_at(view, last - 1), " and ", stride_at(view, last), ")", copy_advice(name, access));
}

bool rows_start_on_16_bytes(const TensorView& view, int contiguous) {
  constexpr std::int64_t kBytes = 16, kBits = 8 * kBytes;
  const auto bits = static_cast<std::int64_t>(bits_of(view.dtype));
  if (reinterpret_cast<std::uintptr_t>(view.data) % kBytes != 0) return false;
  for (int axis = 0; axis < view.rank; ++axis) {
    const auto a = static_cast<std::size_t>(axis);
    // The remainder first: a stride of anybody's, times its bits, may be past 64 of them.
    if (axis != contiguous && view.shape[a] > 1 && view.strides[a] % kBits * bits % kBits != 0) return false;
  }
  return true;
}

void check_writable(const TensorView& view, const ArgumentName& name) {
  if (!overlaps_itself(view)) return;
  for (int axis = 0; axis < view.rank; ++axis) {
    if (size_at(view, axis) > 1 && stride_at(view, axis) == 0 && view.numel() > 0) {
      invalid_argument(name, ": an output must not be broadcast (got stride 0 in dimension ", axis, " of size ",
                       size_at(view, axis), ")");
    }
  }
  invalid_argument(name, ": elements of an output must not share memory (got shape ", list_text(view.shape, view.rank),
                   ", strides ", list_text(view.strides, view.rank), ")");
}

}  // namespace tilewise::core
