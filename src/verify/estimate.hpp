// Numbers with the error that a kernel may make in them, and sums of their products: what bounds of matrix products are
// made of.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace tilewise::verify {

/// A number, how far off it may be, and how far it is on average.
struct Estimate {
  double value = 0.0, limit = 0.0, sigma = 0.0;

  /// Rounded once more, to a dtype of that roundoff.
  [[nodiscard]] Estimate rounded(double roundoff, double tiny) const {
    const double own = roundoff * std::abs(value) + tiny;
    return {value, limit + own, std::hypot(sigma, own)};
  }
  [[nodiscard]] Estimate times(double factor) const {
    return {value * factor, limit * std::abs(factor), sigma * std::abs(factor)};
  }
};

/// Both of them off.
[[nodiscard]] inline Estimate product(const Estimate& a, const Estimate& b) {
  return {a.value * b.value, a.limit * std::abs(b.value) + b.limit * std::abs(a.value) + a.limit * b.limit,
          std::hypot(a.sigma * b.value, b.sigma * a.value)};
}

/// A sum of estimates.
class SumOfEstimates {
 public:
  void add(const Estimate& term) {
    value_ += term.value;
    magnitude_ += std::abs(term.value);
    limit_ += term.limit;
    square_ += term.sigma * term.sigma;
    ++terms_;
  }
  void add(const Estimate& a, double factor) { add(a.times(factor)); }

  [[nodiscard]] double magnitude() const { return magnitude_; }
  /// Summed in an order of the kernel's choice, each step rounded by u. What is no number is it exactly.
  [[nodiscard]] Estimate rounded(double u, double tiny) const {
    if (terms_ == 0 || !std::isfinite(magnitude_)) return {value_};
    const double own = u * (4.0 * std::sqrt(static_cast<double>(terms_)) + 8.0) * magnitude_ + tiny;
    return {value_, limit_ + own, std::hypot(std::sqrt(square_), 0.5 * own)};
  }

 private:
  double value_ = 0.0, magnitude_ = 0.0, limit_ = 0.0, square_ = 0.0;
  std::int64_t terms_ = 0;
};

}  // namespace tilewise::verify
