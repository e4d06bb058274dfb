// Tensors of a described call as the matrices that kernels take. Those not given are all zero.
#pragma once

#include <algorithm>
#include <cstddef>

#include "operations/matrices.hpp"
#include "tilewise/block_format.hpp"

namespace tilewise::operations {

/// Of rank 0 too: one element.
[[nodiscard]] inline Vector vector_of(const TensorView& view) {
  if (view.defined() && view.rank == 0) return {view.data, view.dtype, 1, 0};
  return {view.data, view.dtype, view.shape[0], view.strides[0]};
}

[[nodiscard]] inline Matrix matrix_of(const TensorView& view) {
  return {view.data, view.dtype, view.shape[0], view.shape[1], view.strides[0], view.strides[1]};
}

/// [num_experts, size], or [size] of the only one.
[[nodiscard]] inline ExpertVectors expert_vectors_of(const TensorView& view) {
  if (view.rank == 1) return {view.data, view.dtype, 1, view.shape[0], 0, view.strides[0]};
  return {view.data, view.dtype, view.shape[0], view.shape[1], view.strides[0], view.strides[1]};
}

/// [num_experts, rows, columns], or [rows, columns] of the only one, whose rows or, transposed, columns are contiguous.
/// The stride of a dimension of size 1 may be anything, and becomes the one that makes it contiguous.
[[nodiscard]] inline ExpertMatrices expert_matrices_of(const TensorView& view, bool transposed) {
  if (!view.defined()) return {};
  const std::size_t rows = view.rank == 2 ? 0 : 1, columns = rows + 1;
  ExpertMatrices w{};
  w.data = view.data;
  w.dtype = view.dtype;
  w.num_experts = view.rank == 2 ? 1 : view.shape[0];
  w.expert_stride = view.rank == 2 ? 0 : view.strides[0];
  w.rows = view.shape[rows];
  w.columns = view.shape[columns];
  w.row_stride = transposed ? 1 : view.strides[rows];
  w.column_stride = transposed ? view.strides[columns] : 1;
  return w;
}

/// Scales of blocks of a matrix of so many rows and columns, or of each expert's.
[[nodiscard]] inline BlockScales block_scales_of(const TensorView& view, const BlockFormat& format, std::int64_t rows,
                                                 std::int64_t columns) {
  if (!view.defined()) return {};
  const auto block = [](std::int64_t size, std::int64_t all) {
    return size == BlockFormat::kAll ? std::max<std::int64_t>(all, 1) : size;
  };
  const std::size_t axis = view.rank == 2 ? 0 : 1;
  return {view.data,
          view.dtype,
          block(format.block_rows, rows),
          block(format.block_columns, columns),
          view.rank == 2 ? 0 : view.strides[0],
          view.strides[axis],
          view.strides[axis + 1]};
}

}  // namespace tilewise::operations
