// What a format says of its blocks, as device/common/block_scale.h takes it, and scales in memory.
#pragma once

#include <cstdint>

#include "device/common/block_scale.h"
#include "tilewise/block_format.hpp"
#include "tilewise/tensor.hpp"

namespace tilewise::formats {

[[nodiscard]] constexpr device::ScaleType scale_type_of(DType scale) {
  return scale == DType::f32 ? device::kScaleF32 : scale == DType::fp8_e8m0 ? device::kScaleE8m0 : device::kScaleE4m3;
}

[[nodiscard]] constexpr device::BlockRule rule_of(const BlockFormat& format, bool power_of_two) {
  return {format.element == DType::fp4_e2m1, scale_type_of(format.scale), power_of_two};
}

/// Writes one of device::scale_bits().
inline void store_scale(const TensorView& scales, std::int64_t offset, std::uint32_t bits) {
  if (scales.dtype == DType::f32) {
    static_cast<float*>(scales.data)[offset] = __builtin_bit_cast(float, bits);
  } else {
    static_cast<std::uint8_t*>(scales.data)[offset] = static_cast<std::uint8_t>(bits);
  }
}

}  // namespace tilewise::formats
