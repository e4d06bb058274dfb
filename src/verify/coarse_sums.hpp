// Sums of products in fp8 as Hopper's matrix unit makes them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace tilewise::verify {

/// It keeps 13 bits below the greatest of the 32 products that it adds at once, and of what it adds them to (scores of
/// 79 nats were off by 0.05 on an H200).
inline constexpr double kFp8SumRoundoff = 0x1p-13;
inline constexpr std::int64_t kFp8SumTerms = 32;

/// The most that a sum of n products loses: of each product, and of the sum so far, what lies below the bits that the
/// greatest of them leaves. It is cut off, so that where one product is most of a sum and others have one sign their
/// losses add up (0.11 of a score of 117 on an H200).
template <typename ProductOf>
[[nodiscard]] double coarse_products_error(std::int64_t n, const ProductOf& product_of) {
  double sum = 0.0, error = 0.0;
  for (std::int64_t begin = 0; begin < n; begin += kFp8SumTerms) {
    const std::int64_t end = std::min(begin + kFp8SumTerms, n);
    double greatest = std::abs(sum);
    for (std::int64_t i = begin; i < end; ++i) greatest = std::max(greatest, std::abs(product_of(i)));
    const double least_kept = kFp8SumRoundoff * greatest;
    error += std::min(std::abs(sum), least_kept);
    for (std::int64_t i = begin; i < end; ++i) {
      error += std::min(std::abs(product_of(i)), least_kept);
      sum += product_of(i);
    }
  }
  return error;
}

}  // namespace tilewise::verify
