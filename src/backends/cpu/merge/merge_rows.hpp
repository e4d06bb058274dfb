// Rows of merge on the CPU: weights of the parts, and sums of their elements in fp32 (f64 where out is f64). Plain
// loops that compilers turn into vectors of whatever the machine has.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "device/common/float16.h"
#include "tilewise/tensor.hpp"

namespace tilewise::backends::cpu {

/// f16 to f32 without a branch: the exponent is moved by a product, which sees to subnormals too.
inline float widen_f16(std::uint16_t value) {
  const std::uint32_t magnitude = (value & 0x7FFFu) << 13;
  const auto scaled = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112f);
  const std::uint32_t bits = (value & 0x7C00u) == 0x7C00u ? magnitude | 0x7F800000u : scaled;
  return std::bit_cast<float>(bits | (value & 0x8000u) << 16);
}

/// f32 to f16, to nearest even, without a branch. Source: F. Giesen, float_to_half_fast3_rtne.
inline std::uint16_t narrow_f16(float value) {
  constexpr std::uint32_t kMagic = (127u - 15u + 23u - 10u + 1u) << 23;  // adding it rounds subnormals
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
  const std::uint32_t normal = (magnitude - (112u << 23) + 0xFFFu + (magnitude >> 13 & 1u)) >> 13;
  const std::uint32_t subnormal =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + std::bit_cast<float>(kMagic)) - kMagic;
  const std::uint32_t special = magnitude > 0x7F800000u ? 0x7E00u : 0x7C00u;
  const std::uint32_t finite = magnitude < 113u << 23 ? subnormal : normal;
  return static_cast<std::uint16_t>((magnitude >= 143u << 23 ? special : finite) | (bits >> 16 & 0x8000u));
}

/// How elements of a row are read and written.
struct F32Elements {
  using Element = float;
  static float widen(float value) { return value; }
  static float narrow(float value) { return value; }
};
struct F64Elements {
  using Element = double;
  static double widen(double value) { return value; }
  static double narrow(double value) { return value; }
};
struct Bf16Elements {
  using Element = std::uint16_t;
  static float widen(std::uint16_t value) { return device::bf16_to_float(value); }
  static std::uint16_t narrow(float value) { return device::float_to_bf16(value); }
};
struct F16Elements {
  using Element = std::uint16_t;
  static float widen(std::uint16_t value) { return widen_f16(value); }
  static std::uint16_t narrow(float value) { return narrow_f16(value); }
};

/// Calls visit(Elements{}) with those of `dtype`, which must be ones that sum to Real.
template <typename Real, typename Visit>
void with_elements(DType dtype, Visit&& visit) {
  if constexpr (std::is_same_v<Real, double>) {
    visit(F64Elements{});
  } else {
    if (dtype == DType::bf16) return visit(Bf16Elements{});
    if (dtype == DType::f16) return visit(F16Elements{});
    visit(F32Elements{});
  }
}

/// sum += weight * row.
template <typename Real>
void add_weighted(Real* __restrict sum, const void* row, DType dtype, std::int64_t dim, Real weight) {
  with_elements<Real>(dtype, [&]<typename Elements>(Elements) {
    const auto* __restrict from = static_cast<const typename Elements::Element*>(row);
    for (std::int64_t d = 0; d < dim; ++d) sum[d] += weight * Elements::widen(from[d]);
  });
}

/// row = factor * values, rounded.
template <typename Real>
void store_weighted(void* row, DType dtype, const Real* __restrict values, std::int64_t dim, Real factor) {
  with_elements<Real>(dtype, [&]<typename Elements>(Elements) {
    auto* __restrict to = static_cast<typename Elements::Element*>(row);
    for (std::int64_t d = 0; d < dim; ++d) to[d] = Elements::narrow(factor * values[d]);
  });
}

/// values = row.
template <typename Real>
void load_row(Real* __restrict values, const void* row, DType dtype, std::int64_t dim) {
  with_elements<Real>(dtype, [&]<typename Elements>(Elements) {
    const auto* __restrict from = static_cast<const typename Elements::Element*>(row);
    for (std::int64_t d = 0; d < dim; ++d) values[d] = Elements::widen(from[d]);
  });
}

inline void clear_row(void* row, DType dtype, std::int64_t dim) {
  std::memset(row, 0, static_cast<std::size_t>(dim) * size_of(dtype));
}

/// The scalar product of values and a row, in sixteen sums side by side.
template <typename Real>
Real dot(const Real* __restrict values, const void* row, DType dtype, std::int64_t dim) {
  constexpr std::int64_t kSums = 16;
  Real sums[kSums] = {};
  with_elements<Real>(dtype, [&]<typename Elements>(Elements) {
    const auto* __restrict from = static_cast<const typename Elements::Element*>(row);
    std::int64_t d = 0;
    for (; d + kSums <= dim; d += kSums) {
      for (std::int64_t i = 0; i < kSums; ++i) sums[i] += values[d + i] * Elements::widen(from[d + i]);
    }
    for (; d < dim; ++d) sums[d % kSums] += values[d] * Elements::widen(from[d]);
  });
  Real total = 0;
  for (const Real sum : sums) total += sum;
  return total;
}

}  // namespace tilewise::backends::cpu
