// Which element types tensors of operations may have.
#pragma once

#include <cstdint>

#include "device/common/params.h"
#include "formats/element.hpp"
#include "tilewise/tensor.hpp"

namespace tilewise::operations {

/// Whether q, k and v may have this element type.
[[nodiscard]] constexpr bool is_element_type(DType dtype) {
  return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16 || dtype == DType::f64;
}

/// Element type of softmax_lse, dlse and alibi_slopes.
[[nodiscard]] constexpr DType statistics_dtype(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

/// Of the values of a bias or a sink; boolean for kBiasBool.
[[nodiscard]] constexpr DType dtype_of(std::int32_t type) {
  switch (type) {
    case device::kBiasF32:
      return DType::f32;
    case device::kBiasBf16:
      return DType::bf16;
    case device::kBiasF16:
      return DType::f16;
    case device::kBiasBool:
      return DType::boolean;
    case device::kBiasF64:
      return DType::f64;
    default:
      return DType::none;
  }
}

using formats::load_element, formats::store_element;

}  // namespace tilewise::operations
