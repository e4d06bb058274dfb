// Vectors, matrices and stacks of them as parameters of linear layers, routers and experts: shape and strides (in
// elements) beside every pointer. A null pointer says "not given".
#pragma once

#include <cstdint>

#include "tilewise/tensor.hpp"

namespace tilewise::operations {

struct Vector {
  void* data;
  DType dtype;
  std::int64_t size, stride;
};

struct Matrix {
  void* data;
  DType dtype;
  std::int64_t rows, columns, row_stride, column_stride;
};

/// A bias [num_experts, size].
struct ExpertVectors {
  void* data;
  DType dtype;
  std::int64_t num_experts, size, expert_stride, stride;
};

/// Factors of blocks of a matrix's elements: block (i, j) of block_rows x block_columns elements has the scale at
/// [expert, i, j]. A stride of 0 repeats one. Those of rows x have no expert.
struct BlockScales {
  void* data;
  DType dtype;
  std::int64_t block_rows, block_columns, expert_stride, row_stride, column_stride;
};

/// Weights [num_experts, rows, columns]: rows are outputs and columns are summed over, whichever is contiguous.
/// value = element, times its block's scale, times its expert's.
struct ExpertMatrices {
  void* data;
  DType dtype;
  std::int64_t num_experts, rows, columns, expert_stride, row_stride, column_stride;
  BlockScales scales;
  Vector expert_scales;
};

/// i32 or i64.
[[nodiscard]] inline std::int64_t load_integer(DType dtype, const void* data, std::int64_t index) {
  if (dtype == DType::i64) return static_cast<const std::int64_t*>(data)[index];
  return static_cast<const std::int32_t*>(data)[index];
}

inline void store_integer(DType dtype, void* data, std::int64_t index, std::int64_t value) {
  if (dtype == DType::i64)
    static_cast<std::int64_t*>(data)[index] = value;
  else
    static_cast<std::int32_t*>(data)[index] = static_cast<std::int32_t>(value);
}

}  // namespace tilewise::operations
