// Matrices with memory of their own, drawn at random.
#pragma once

#include <cmath>
#include <cstddef>
#include <deque>
#include <functional>
#include <vector>

#include "operations/elements.hpp"
#include "operations/matrices.hpp"
#include "verify/random.hpp"

namespace tilewise::experts_test {

using operations::ExpertMatrices, operations::ExpertVectors, operations::Matrix, operations::Vector;

inline double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

/// How a matrix lies in memory: by rows with `padding` elements behind each, or by columns.
struct Layout {
  bool by_columns = false;
  std::int64_t padding = 0;
};

/// Keeps the memory of what it makes.
class Tensors {
 public:
  explicit Tensors(std::uint64_t seed) : random(seed) {}

  verify::Random random;
  double deviation = 1.0;  ///< of the numbers drawn

  Matrix matrix(DType dtype, std::int64_t rows, std::int64_t columns, Layout layout = {}) {
    const ExpertMatrices drawn = weights(dtype, 1, rows, columns, layout);
    return {drawn.data, dtype, rows, columns, drawn.row_stride, drawn.column_stride};
  }

  ExpertMatrices weights(DType dtype, std::int64_t experts, std::int64_t rows, std::int64_t columns,
                         Layout layout = {}) {
    const std::int64_t outer = (layout.by_columns ? rows : columns) + layout.padding;
    const std::int64_t expert_stride = outer * (layout.by_columns ? columns : rows);
    return {floats(dtype, experts * expert_stride),
            dtype,
            experts,
            rows,
            columns,
            expert_stride,
            layout.by_columns ? 1 : outer,
            layout.by_columns ? outer : 1,
            {},
            {}};
  }

  ExpertVectors vectors(DType dtype, std::int64_t experts, std::int64_t size) {
    return {floats(dtype, experts * size), dtype, experts, size, size, 1};
  }

  Vector vector(DType dtype, std::int64_t size) { return {floats(dtype, size), dtype, size, 1}; }

  Vector integers(DType dtype, const std::vector<std::int64_t>& values) {
    void* data = bytes(values.size() * size_of(dtype));
    for (std::size_t i = 0; i < values.size(); ++i)
      operations::store_integer(dtype, data, static_cast<std::int64_t>(i), values[i]);
    return {data, dtype, static_cast<std::int64_t>(values.size()), 1};
  }

  Matrix ids(DType dtype, std::int64_t rows, std::int64_t columns, const std::function<std::int64_t()>& draw) {
    std::vector<std::int64_t> values(static_cast<std::size_t>(rows * columns));
    for (std::int64_t& value : values) value = draw();
    return {integers(dtype, values).data, dtype, rows, columns, columns, 1};
  }

  void* bytes(std::size_t size) {
    memory_.emplace_back(size + 1);  // never empty: data that is null is not given
    return memory_.back().data();
  }

 private:
  void* floats(DType dtype, std::int64_t count) {
    void* data = bytes(static_cast<std::size_t>(count) * size_of(dtype));
    for (std::int64_t i = 0; i < count; ++i) operations::store_element(dtype, data, i, deviation * random.normal());
    return data;
  }

  std::deque<std::vector<std::byte>> memory_;
};

inline double at(const Matrix& m, std::int64_t row, std::int64_t column) {
  return operations::load_element(m.dtype, m.data, row * m.row_stride + column * m.column_stride);
}

inline void set(const Matrix& m, std::int64_t row, std::int64_t column, double value) {
  operations::store_element(m.dtype, m.data, row * m.row_stride + column * m.column_stride, value);
}

inline std::int64_t id_at(const Matrix& m, std::int64_t row, std::int64_t column) {
  return operations::load_integer(m.dtype, m.data, row * m.row_stride + column * m.column_stride);
}

/// One expert's matrix.
inline Matrix matrix_of(const ExpertMatrices& w, std::int64_t expert) {
  auto* data = static_cast<std::byte*>(w.data) + expert * w.expert_stride * static_cast<std::int64_t>(size_of(w.dtype));
  return {data, w.dtype, w.rows, w.columns, w.row_stride, w.column_stride};
}

}  // namespace tilewise::experts_test
