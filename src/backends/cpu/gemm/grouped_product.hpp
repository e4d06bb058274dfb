// Rows in groups times their groups' weights: the host side of linear layers and of both products of experts.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backends/cpu/cpu_features.hpp"
#include "backends/cpu/gemm/elements.hpp"
#include "backends/cpu/gemm/gemm_kernels.hpp"
#include "operations/matrices.hpp"

namespace tilewise::backends::cpu {

/// Those of an instruction set; those of bf16 alone may lack others.
[[nodiscard]] const GemmKernels& gemm_kernels_of(Isa isa);

/// The kernel that multiplies rows of one dtype by weights of another; null where the set has none.
[[nodiscard]] const GemmKernel* gemm_kernel(const GemmKernels& kernels, DType x, DType w);

struct GroupedProduct {
  const GemmKernels* kernels;
  DType dtype;  ///< of rows
  const void* x;
  std::int64_t x_stride;
  operations::BlockScales x_scales;
  const std::int64_t* row_index;  ///< rows of x in the order of groups; null: as they lie
  const std::int64_t* groups;     ///< [w.num_experts + 1] first rows
  operations::ExpertMatrices w;
  operations::ExpertVectors bias;
  std::int64_t first_output;  ///< of w, whose `rows` outputs from there on are wanted; without a gate
  device::GateLayout layout;
  device::Activation activation;
  const void* factor;  ///< of each row, in sum_dtype(); null: 1
  bool factor_on_product;
  void* out;  ///< rows in the order of groups
  std::int64_t out_stride;
  DType out_dtype;
  bool batch_invariant;
};

/// Bytes that run_grouped_product() needs to plan its tasks.
[[nodiscard]] std::size_t grouped_product_workspace(std::int64_t num_groups);

/// Every result is summed up in one order, whatever the number of threads.
void run_grouped_product(const GroupedProduct& p, void* workspace);

/// Throws Error where `m` is no matrix that kernels read row by row.
void check_rows(const char* name, const operations::Matrix& m);
/// Likewise where `scales` are none that they read, of rows or weights of that dtype and depth.
void check_scales(const char* name, const operations::BlockScales& scales, DType dtype, std::int64_t depth);
/// Likewise where `m` is no matrix that they write row by row, of x in `dtype`.
void check_results(const char* name, const operations::Matrix& m, DType dtype);
/// Likewise where `w` is neither of `dtype` nor quantised, or has neither of its dimensions contiguous.
void check_weights(const char* name, const operations::ExpertMatrices& w, DType dtype);
/// Likewise where the kernels have none for rows and weights of these dtypes.
void check_kernel(const GemmKernels& kernels, DType x, DType w);

}  // namespace tilewise::backends::cpu
