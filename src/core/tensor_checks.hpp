// Checks of one tensor argument. Each throws an Error that names the argument, what was
// expected and what was given; the good path builds no string. A tensor without elements may have
// any strides and any address.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

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

/// One dimension of an expected shape, with its name for messages.
struct Dim {
  std::string_view name;
  std::int64_t size;
};

/// An expected shape of up to four dimensions.
struct Shape {
  int rank = 0;
  std::array<Dim, 4> dims{};

  Shape() = default;
  Shape(std::initializer_list<Dim> list);
};

/// Given, on `device`, and addressable: rank and sizes sane, data present and aligned to its dtype.
/// `anchor` is the argument whose device the others must share.
void check_view(const TensorView& view, std::string_view name, Device device, std::string_view anchor);
/// Throws because no tensor may have the dtype that is called `got`, which DType does not know.
[[noreturn]] void refuse_dtype(std::string_view name, std::string_view got);
void check_dtype(const TensorView& view, std::string_view name, DType expected);
/// `words` names the dimensions, e.g. "[rows, columns]".
void check_rank(const TensorView& view, std::string_view name, int expected, std::string_view words);
void check_shape(const TensorView& view, std::string_view name, const Shape& expected);
/// The last dimension has stride 1 (or at most one element).
void check_contiguous_last(const TensorView& view, std::string_view name);
/// Whether every row (along the last dimension) starts on 16 bytes.
[[nodiscard]] bool rows_start_on_16_bytes(const TensorView& view);
/// Elements of an output must not share memory, be it through a stride of 0 or through rows that overlap.
void check_writable(const TensorView& view, std::string_view name);

}  // namespace tilewise::core
