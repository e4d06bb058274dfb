// Checks of one tensor argument. Each throws an Error that names the argument, what was
// expected and what was given; the good path builds no string. A tensor without elements may have
// any strides and any address.
#pragma once

#include <array>
#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/message.hpp"
#include "core/visibility.hpp"
#include "tilewise/tensor.hpp"

namespace tilewise::core {

[[nodiscard]] inline std::int64_t size_at(const TensorView& view, int axis) {
  return view.shape[static_cast<std::size_t>(axis)];
}
[[nodiscard]] inline std::int64_t stride_at(const TensorView& view, int axis) {
  return view.strides[static_cast<std::size_t>(axis)];
}

/// What a call does with a tensor.
enum class Access : std::uint8_t { read, write, mutate };

/// An argument as messages call it: "q", or one of many tensors with the same role, "outs[3]". Borrows the role.
struct ArgumentName {
  std::string_view role;
  std::int64_t index = -1;  ///< -1: the only one

  ArgumentName() = default;
  template <std::convertible_to<std::string_view> Text>
  ArgumentName(const Text& text) : role(text) {}  // NOLINT(google-explicit-constructor): most arguments are one word
  ArgumentName(std::string_view of, std::size_t n) : role(of), index(static_cast<std::int64_t>(n)) {}
};

/// No conversions to it here: all that is text would do.
template <std::same_as<ArgumentName> Name>
void append(std::string& text, const Name& name) {
  text += name.role;
  if (name.index >= 0) text += concat('[', name.index, ']');
}

/// One dimension of an expected shape, with its name for messages.
struct Dim {
  std::string_view name;
  std::int64_t size;
};

/// An expected shape.
struct TILEWISE_INTERNAL Shape {
  int rank = 0;
  std::array<Dim, kMaxRank> dims;  ///< those past the rank hold anything: zeros for all took a third of describing

  Shape() {}  // NOLINT(modernize-use-equals-default,cppcoreguidelines-pro-type-member-init): Shape{} would fill dims
  Shape(std::initializer_list<Dim> list);
};

/// Given, on `device`, and addressable: rank and sizes sane, data present and aligned to its dtype.
/// `anchor` is the argument whose device the others must share.
TILEWISE_INTERNAL void check_view(const TensorView& view, const ArgumentName& name, Device device,
                                  std::string_view anchor);
/// Throws because no tensor may have the dtype that is called `got`, which DType does not know.
[[noreturn]] TILEWISE_INTERNAL void refuse_dtype(const ArgumentName& name, std::string_view got);
TILEWISE_INTERNAL void check_dtype(const TensorView& view, const ArgumentName& name, DType expected);
/// `words` names the dimensions, e.g. "[rows, columns]".
TILEWISE_INTERNAL void check_rank(const TensorView& view, const ArgumentName& name, int expected,
                                  std::string_view words);
TILEWISE_INTERNAL void check_shape(const TensorView& view, const ArgumentName& name, const Shape& expected);
/// The last dimension has stride 1 (or at most one element). The message names what makes a copy of what is only read.
TILEWISE_INTERNAL void check_contiguous_last(const TensorView& view, const ArgumentName& name,
                                             Access access = Access::read);
/// The axis of the last two that has stride 1 (or at most one element), the last one where both do. Throws where
/// neither does.
[[nodiscard]] TILEWISE_INTERNAL int contiguous_of_last_two(const TensorView& view, const ArgumentName& name,
                                                           Access access);
/// Whether every row along the contiguous axis starts on 16 bytes.
[[nodiscard]] TILEWISE_INTERNAL bool rows_start_on_16_bytes(const TensorView& view, int contiguous);
/// The same of rows along the last dimension.
[[nodiscard]] inline bool rows_start_on_16_bytes(const TensorView& view) {
  return rows_start_on_16_bytes(view, view.rank - 1);
}
/// Elements of an output must not share memory, be it through a stride of 0 or through rows that overlap.
TILEWISE_INTERNAL void check_writable(const TensorView& view, const ArgumentName& name);

}  // namespace tilewise::core
