// Elements of the matrices of linear layers, routers and experts as Reals, wherever they lie.
#pragma once

#include <cstdint>

#include "operations/elements.hpp"
#include "operations/matrices.hpp"

namespace tilewise::backends::reference {

[[nodiscard]] inline double load(const operations::Vector& v, std::int64_t i) {
  return operations::load_element(v.dtype, v.data, i * v.stride);
}
[[nodiscard]] inline double load(const operations::Matrix& m, std::int64_t row, std::int64_t column) {
  return operations::load_element(m.dtype, m.data, row * m.row_stride + column * m.column_stride);
}
/// The scale of an element's block; 1 where there are none.
[[nodiscard]] inline double load(const operations::BlockScales& s, std::int64_t expert, std::int64_t row,
                                 std::int64_t column) {
  if (s.data == nullptr) return 1.0;
  return operations::load_element(
      s.dtype, s.data,
      expert * s.expert_stride + row / s.block_rows * s.row_stride + column / s.block_columns * s.column_stride);
}

/// An element of rows with their scales.
[[nodiscard]] inline double load(const operations::Matrix& m, const operations::BlockScales& scales, std::int64_t row,
                                 std::int64_t column) {
  return load(m, row, column) * load(scales, 0, row, column);
}
inline void store(const operations::Matrix& m, std::int64_t row, std::int64_t column, double value) {
  operations::store_element(m.dtype, m.data, row * m.row_stride + column * m.column_stride, value);
}

/// 0 where there is no bias.
[[nodiscard]] inline double load(const operations::ExpertVectors& v, std::int64_t expert, std::int64_t i) {
  if (v.data == nullptr) return 0.0;
  return operations::load_element(v.dtype, v.data, expert * v.expert_stride + i * v.stride);
}
inline void store(const operations::ExpertVectors& v, std::int64_t expert, std::int64_t i, double value) {
  operations::store_element(v.dtype, v.data, expert * v.expert_stride + i * v.stride, value);
}

/// A weight with its scales.
[[nodiscard]] inline double load(const operations::ExpertMatrices& w, std::int64_t expert, std::int64_t row,
                                 std::int64_t column) {
  const double element = operations::load_element(
      w.dtype, w.data, expert * w.expert_stride + row * w.row_stride + column * w.column_stride);
  const double value = element * load(w.scales, expert, row, column);
  return w.expert_scales.data == nullptr ? value : value * load(w.expert_scales, expert);
}
inline void store(const operations::ExpertMatrices& w, std::int64_t expert, std::int64_t row, std::int64_t column,
                  double value) {
  operations::store_element(w.dtype, w.data, expert * w.expert_stride + row * w.row_stride + column * w.column_stride,
                            value);
}

}  // namespace tilewise::backends::reference
