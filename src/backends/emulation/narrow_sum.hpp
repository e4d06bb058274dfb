// What Hopper's matrix unit makes of fp8 products: it aligns the products of one instruction and the sum before to the
// greatest of them and cuts what lies below 14 bits, so that a long sum in it is worth as much.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>

namespace tilewise::backends::emulation {

inline constexpr int kNarrowSumBits = 14;

/// sum + the products, each cut toward zero to multiples of 2^-13 of the greatest one's power of two. Numbers that are
/// not finite are added as they are.
[[nodiscard]] inline float narrow_sum(float sum, std::span<const float> products) {
  constexpr std::uint32_t kMagnitude = 0x7FFF'FFFFu, kInfinity = 0x7F80'0000u;
  std::uint32_t greatest = std::bit_cast<std::uint32_t>(sum) & kMagnitude;
  for (const float x : products) greatest = std::max(greatest, std::bit_cast<std::uint32_t>(x) & kMagnitude);
  if (greatest == 0) return sum;
  if (greatest >= kInfinity) {
    for (const float x : products) sum += x;
    return sum;
  }
  // Scaled so that the unit is 1. Exact: doubles have exponents to spare.
  const int exponent = static_cast<int>(std::max(greatest >> 23, 1u)) - 127 - (kNarrowSumBits - 1);
  const double by = std::bit_cast<double>(static_cast<std::uint64_t>(1023 - exponent) << 52);
  auto units = static_cast<std::int64_t>(sum * by);
  for (const float x : products) units += static_cast<std::int64_t>(x * by);
  return static_cast<float>(static_cast<double>(units) / by);
}

}  // namespace tilewise::backends::emulation
