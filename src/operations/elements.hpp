// Which element types tensors of operations may have.
#pragma once

#include <array>
#include <cstddef>
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

/// Of an enumeration none, f32, bf16, f16, f64: a vector that may be there.
template <typename Vector>
[[nodiscard]] constexpr DType dtype_of_vector(Vector vector) {
  constexpr std::array kTypes{DType::none, DType::f32, DType::bf16, DType::f16, DType::f64};
  const auto index = static_cast<std::size_t>(vector);
  return index < kTypes.size() ? kTypes[index] : DType::none;
}

/// The feature of an element type, by the names that operations' features share.
template <typename Feature>
[[nodiscard]] constexpr Feature element_feature(DType dtype) {
  if constexpr (requires { Feature::f64; })
    if (dtype == DType::f64) return Feature::f64;
  return dtype == DType::bf16 ? Feature::bf16 : dtype == DType::f16 ? Feature::f16 : Feature::f32;
}

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
