// One element of any dtype as a double and back: for sinks, log-sum-exps, references and whatever else is read one by
// one.
#pragma once

#include <cstdint>

#include "device/common/float16.h"
#include "device/common/float4.h"
#include "device/common/float8.h"
#include "device/common/float8_e5m2.h"
#include "device/common/float8_e8m0.h"
#include "tilewise/tensor.hpp"

namespace tilewise::formats {

/// Exact but for integers beyond 2^53. Element `index` of a packed dtype counts from the low half of the first byte.
[[nodiscard]] inline double load_element(DType dtype, const void* data, std::int64_t index) {
  switch (dtype) {
    case DType::bf16:
      return device::bf16_to_float(static_cast<const std::uint16_t*>(data)[index]);
    case DType::f16:
      return device::f16_to_float(static_cast<const std::uint16_t*>(data)[index]);
    case DType::f64:
      return static_cast<const double*>(data)[index];
    case DType::boolean:
    case DType::u8:
      return static_cast<const std::uint8_t*>(data)[index];
    case DType::i32:
      return static_cast<const std::int32_t*>(data)[index];
    case DType::i64:
      return static_cast<double>(static_cast<const std::int64_t*>(data)[index]);
    case DType::fp8_e4m3:
      return device::e4m3_to_float(static_cast<const std::uint8_t*>(data)[index]);
    case DType::fp8_e5m2:
      return device::e5m2_to_float(static_cast<const std::uint8_t*>(data)[index]);
    case DType::fp8_e8m0:
      return device::e8m0_to_float(static_cast<const std::uint8_t*>(data)[index]);
    case DType::fp4_e2m1:
      return device::e2m1_to_float(device::e2m1_at(static_cast<const std::uint8_t*>(data), index));
    default:
      return static_cast<const float*>(data)[index];
  }
}

/// Rounds to f32 first and then to nearest even again where dtype is narrower. An integer must be within its range.
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
    case DType::boolean:
    case DType::u8:
      static_cast<std::uint8_t*>(data)[index] = static_cast<std::uint8_t>(value);
      break;
    case DType::i32:
      static_cast<std::int32_t*>(data)[index] = static_cast<std::int32_t>(value);
      break;
    case DType::i64:
      static_cast<std::int64_t*>(data)[index] = static_cast<std::int64_t>(value);
      break;
    case DType::fp8_e4m3:
      static_cast<std::uint8_t*>(data)[index] = device::float_to_e4m3(static_cast<float>(value));
      break;
    case DType::fp8_e5m2:
      static_cast<std::uint8_t*>(data)[index] = device::float_to_e5m2(static_cast<float>(value));
      break;
    case DType::fp8_e8m0:
      static_cast<std::uint8_t*>(data)[index] = device::float_to_e8m0(static_cast<float>(value));
      break;
    case DType::fp4_e2m1:
      device::set_e2m1(static_cast<std::uint8_t*>(data), index, device::float_to_e2m1(static_cast<float>(value)));
      break;
    default:
      static_cast<float*>(data)[index] = static_cast<float>(value);
  }
}

}  // namespace tilewise::formats
