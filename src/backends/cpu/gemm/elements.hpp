// Dtypes as the kernels of products are told them.
#pragma once

#include "backends/cpu/gemm/gemm_kernels.hpp"
#include "tilewise/tensor.hpp"

namespace tilewise::backends::cpu {

[[nodiscard]] inline bool is_quantized(DType dtype) { return dtype == DType::fp8_e4m3 || dtype == DType::fp4_e2m1; }

[[nodiscard]] inline GemmElement gemm_element(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return GemmElement::bf16;
    case DType::f16:
      return GemmElement::f16;
    case DType::f64:
      return GemmElement::f64;
    case DType::fp8_e4m3:
      return GemmElement::e4m3;
    case DType::fp4_e2m1:
      return GemmElement::e2m1;
    case DType::fp8_e8m0:
      return GemmElement::e8m0;
    default:
      return GemmElement::f32;
  }
}

/// What products of rows of such a dtype are summed up in.
[[nodiscard]] inline DType sum_dtype(DType x) { return x == DType::f64 ? DType::f64 : DType::f32; }

}  // namespace tilewise::backends::cpu
