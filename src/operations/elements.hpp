// One element of any floating-point dtype as a double and back: for sinks, log-sum-exps and whatever
// else is read one by one.
#pragma once

#include <cstdint>

#include "device/common/float16.h"
#include "device/common/float8.h"
#include "device/common/params.h"
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

[[nodiscard]] inline double load_element(DType dtype, const void* data, std::int64_t index) {
  switch (dtype) {
    case DType::bf16:
      return device::bf16_to_float(static_cast<const std::uint16_t*>(data)[index]);
    case DType::f16:
      return device::f16_to_float(static_cast<const std::uint16_t*>(data)[index]);
    case DType::f64:
      return static_cast<const double*>(data)[index];
    case DType::fp8_e4m3:
      return device::e4m3_to_float(static_cast<const std::uint8_t*>(data)[index]);
    default:
      return static_cast<const float*>(data)[index];
  }
}

/// Rounds to f32 first and then to nearest even again where dtype is narrower.
inline void store_element(DType dtype, void* data, std::int64_t index, double value) {
  switch (dtype) {
    case DType::bf16:
      static_cast<std::uint16_t*>(data)[index] = device::float_to_bf16(static_cast<float>(value));
      break;
    case DType::f16:
      static_cast<std::uint16_t*>(data)[index] = device::float_to_f16(static_cast<float>(value));
      break;
    case DType::f64:
      static_cast<double*>(data)[index] = value;
      break;
    case DType::fp8_e4m3:
      static_cast<std::uint8_t*>(data)[index] = device::float_to_e4m3(static_cast<float>(value));
      break;
    default:
      static_cast<float*>(data)[index] = static_cast<float>(value);
  }
}

}  // namespace tilewise::operations
