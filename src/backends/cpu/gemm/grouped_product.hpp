// Rows in groups times their groups' weights: the host side of linear layers and of both products of experts.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backends/cpu/cpu_features.hpp"
#include "backends/cpu/gemm/gemm_kernels.hpp"
#include "operations/matrices.hpp"

namespace tilewise::backends::cpu {

/// Those of an instruction set; those of bf16 alone may lack others.
[[nodiscard]] const GemmKernels& gemm_kernels_of(Isa isa);

struct GroupedProduct {
  const GemmKernels* kernels;
  DType dtype;  ///< of rows and weights
  const void* x;
  std::int64_t x_stride;
  const std::int64_t* row_index;  ///< rows of x in the order of groups; null: as they lie
  const std::int64_t* groups;     ///< [w.num_experts + 1] first rows
  operations::ExpertMatrices w;
  operations::ExpertVectors bias;
  device::GateLayout layout;
  device::Activation activation;
  const void* factor;  ///< of each row, f32 (f64 where dtype is); null: 1
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

/// Throws Error where `m` is no matrix that kernels of `dtype` read row by row.
void check_rows(const char* name, const operations::Matrix& m, DType dtype);
/// Throws Error where `m` is no matrix that they write row by row.
void check_results(const char* name, const operations::Matrix& m, DType dtype);
/// Throws Error where `w` is not of `dtype`, or neither of its dimensions is contiguous.
void check_weights(const char* name, const operations::ExpertMatrices& w, DType dtype);

}  // namespace tilewise::backends::cpu
