// The scale that a block gets. One rule each, in f32, for the reference and for kernels on the host.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "device/common/float4.h"
#include "device/common/float8.h"
#include "device/common/float8_e8m0.h"
#include "tilewise/block_format.hpp"

namespace tilewise::formats {

constexpr float kLeastNormal = 0x1p-126f;
constexpr float kLeastE4m3 = 0x1p-9f;

[[nodiscard]] constexpr float largest_element(DType element) {
  return element == DType::fp4_e2m1 ? device::kLargestE2m1 : device::kLargestE4m3;
}

/// The least power of two that is no smaller than a positive, normal number.
[[nodiscard]] inline float power_of_two_above(float value) {
  const float power = std::ldexp(1.0f, device::floor_log2(value));
  return power < value ? 2.0f * power : power;
}

/// An f32 scale: of fp8 blocks.
[[nodiscard]] inline float real_scale(float amax, bool power_of_two) {
  if (amax == 0.0f) return 1.0f;
  const float scale = std::max(amax / device::kLargestE4m3, kLeastNormal);
  return power_of_two ? power_of_two_above(scale) : scale;
}

/// The factor of a whole tensor in nvfp4: its largest block scale is 448.
[[nodiscard]] inline float global_scale(float amax) {
  if (amax == 0.0f) return 1.0f;
  return std::max(amax / (device::kLargestE2m1 * device::kLargestE4m3), kLeastNormal);
}

/// The byte of nvfp4's block scale; NaN is 0x7F.
[[nodiscard]] inline std::uint8_t e4m3_scale(float amax, float global) {
  const float scale = std::min(device::kLargestE4m3, amax / device::kLargestE2m1 / global);
  return std::max<std::uint8_t>(device::float_to_e4m3(scale), 1);  // 2^-9
}

/// The byte of an OCP MX scale: 2^(floor(log2(amax)) - emax).
[[nodiscard]] constexpr std::uint8_t e8m0_scale(float amax, DType element) {
  if (amax == 0.0f) return 0;
  constexpr std::int32_t kEmaxE2m1 = 2, kEmaxE4m3 = 8;
  return device::e8m0_of_exponent(device::floor_log2(amax) - (element == DType::fp4_e2m1 ? kEmaxE2m1 : kEmaxE4m3));
}

/// A block's scale as its format stores it, as bits: of an f32 those of the number.
[[nodiscard]] inline std::uint32_t scale_bits(const BlockFormat& format, float amax, float global, bool power_of_two) {
  switch (format.scale) {
    case DType::fp8_e8m0:
      return power_of_two ? device::float_to_e8m0(real_scale(amax, true)) : e8m0_scale(amax, format.element);
    case DType::fp8_e4m3:
      return e4m3_scale(amax, global);
    default:
      return __builtin_bit_cast(std::uint32_t, real_scale(amax, power_of_two));
  }
}

/// The number that scale_bits() stand for.
[[nodiscard]] constexpr float scale_value(DType scale, std::uint32_t bits) {
  const auto byte = static_cast<std::uint8_t>(bits);
  return scale == DType::f32        ? __builtin_bit_cast(float, bits)
         : scale == DType::fp8_e8m0 ? device::e8m0_to_float(byte)
                                    : device::e4m3_to_float(byte);
}

/// What stands for the scale of a block that has a NaN, where elements can be none.
[[nodiscard]] constexpr std::uint8_t nan_scale(DType scale) {
  return scale == DType::fp8_e8m0 ? device::kNanE8m0 : std::uint8_t{0x7F};
}

/// Writes one of scale_bits().
inline void store_scale(const TensorView& scales, std::int64_t offset, std::uint32_t bits) {
  if (scales.dtype == DType::f32) {
    static_cast<float*>(scales.data)[offset] = __builtin_bit_cast(float, bits);
  } else {
    static_cast<std::uint8_t*>(scales.data)[offset] = static_cast<std::uint8_t>(bits);
  }
}

}  // namespace tilewise::formats
