// The parts of which backward passes of linear layers and experts are made, beside products with weights.
#pragma once

#include <cstdint>

#include "backends/cpu/gemm/gemm_kernels.hpp"
#include "operations/matrices.hpp"

namespace tilewise::backends::cpu {

/// Element type of gradients that become rows of products: that of x, but f32 of f16, whose range is too small.
[[nodiscard]] inline DType gradient_dtype(DType x) { return x == DType::f16 ? DType::f32 : x; }

/// Of weights from outputs to what they are summed over, and of their gradients likewise.
[[nodiscard]] operations::ExpertMatrices transposed(operations::ExpertMatrices w);

/// Rows in the order of groups.
struct GroupedRows {
  const void* data;
  DType dtype;
  std::int64_t columns, stride;
  const std::int64_t* index;  ///< of each one in memory; null: as they lie
  const void* factor;         ///< of each, in sum_dtype(); null: 1
};

/// dw[e, i, j] = sum over the group's rows, in their order, of a[row, i] b[row, j]; 0 without rows. a and b are in x's
/// dtype or gradient_dtype().
void run_weight_gradient(const GemmKernel& kernel, const std::int64_t* groups, const GroupedRows& a,
                         const GroupedRows& b, const operations::ExpertMatrices& dw);

/// dbias[e, i] = sum over the group's rows of a[row, i]. `sum`: sum_dtype().
void run_bias_gradient(const std::int64_t* groups, const GroupedRows& a, DType sum,
                       const operations::ExpertVectors& dbias);

/// A task of all rows, in parallel parts.
void run_activation_gradient(const GemmKernel& kernel, const ActivationTask& task);

/// Throws Error where `dw` is no gradient of w that is written, of x in `dtype`.
void check_weight_gradient(const char* name, const operations::ExpertMatrices& dw, DType dtype);

}  // namespace tilewise::backends::cpu
