// Rows and weights quantised from drawn numbers, with their scales.
#pragma once

#include <algorithm>
#include <string_view>
#include <vector>

#include "core/ceil_div.hpp"
#include "formats/quantize.hpp"
#include "support.hpp"

namespace tilewise::experts_test {

struct Quantized {
  ExpertMatrices elements;  ///< with their scales

  [[nodiscard]] Matrix matrix() const { return matrix_of(elements, 0); }
};

/// Swaps the strides of elements of a whole byte, so that the rows are contiguous.
inline void lay_by_columns(ExpertMatrices& w) {
  const std::int64_t size = w.rows * w.columns;
  auto* bytes = static_cast<std::uint8_t*>(w.data);
  for (std::int64_t e = 0; e < w.num_experts; ++e) {
    std::uint8_t* own = bytes + e * w.expert_stride;
    const std::vector<std::uint8_t> before(own, own + size);
    for (std::int64_t i = 0; i < size; ++i)
      own[i % w.columns * w.rows + i / w.columns] = before[static_cast<std::size_t>(i)];
  }
  w.row_stride = 1;
  w.column_stride = w.rows;
}

/// Each expert is a tensor of its own. Numbers differ in size from part to part, as scales should.
inline Quantized draw_quantized(Tensors& tensors, const BlockFormat& format, std::int64_t experts, std::int64_t rows,
                                std::int64_t columns) {
  const auto block = [](std::int64_t size, std::int64_t all) {
    return size == BlockFormat::kAll ? std::max<std::int64_t>(all, 1) : size;
  };
  const std::int64_t block_rows = block(format.block_rows, rows), block_columns = block(format.block_columns, columns);
  const std::int64_t down = core::ceil_div(rows, block_rows), across = core::ceil_div(columns, block_columns);
  const std::int64_t stride = (columns + 1) / 2 * 2;  // fp4 begins rows on bytes
  ExpertMatrices w{};
  w.data = tensors.bytes(static_cast<std::size_t>(experts * rows * stride));
  w.dtype = format.element;
  w.num_experts = experts;
  w.rows = rows;
  w.columns = columns;
  w.expert_stride = rows * stride;
  w.row_stride = stride;
  w.column_stride = 1;
  void* scales = tensors.bytes(static_cast<std::size_t>(experts * down * across) * size_of(format.scale));
  w.scales = {scales, format.scale, block_rows, block_columns, down * across, across, 1};
  if (format.global) w.expert_scales = tensors.vector(DType::f32, experts);
  for (std::int64_t e = 0; e < experts && rows * columns > 0; ++e) {
    const Matrix numbers = tensors.matrix(DType::f32, rows, columns);
    for (std::int64_t i = 0; i < rows * columns; ++i) {
      auto& number = static_cast<float*>(numbers.data)[i];
      number *= std::ldexp(1.0F, static_cast<int>(i / 16 % 7) - 5);
    }
    const auto at = [](void* data, std::int64_t bytes) { return static_cast<std::byte*>(data) + bytes; };
    const std::int64_t bits = static_cast<std::int64_t>(bits_of(format.element));
    const TensorView elements(at(w.data, e * w.expert_stride * bits / 8), format.element, {rows, columns}, {stride, 1});
    const TensorView own(at(scales, e * down * across * static_cast<std::int64_t>(size_of(format.scale))), format.scale,
                         {down, across});
    TensorView global;
    if (format.global) global = TensorView(at(w.expert_scales.data, e * 4), DType::f32, {1});
    formats::quantize(TensorView(numbers.data, DType::f32, {rows, columns}), format, {elements, own, global});
  }
  return {w};
}

}  // namespace tilewise::experts_test
