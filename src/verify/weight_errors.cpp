// See weight_errors.hpp.
#include "verify/weight_errors.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

namespace tilewise::verify {
namespace {

constexpr double kFirstOrder = 0.1;    // an error beyond which exp is no longer 1 + error
constexpr double kNegligible = 1e-12;  // of the greatest weight
constexpr double kFar = 1e6;
constexpr double kLargestPower = 700.0;  // exp of it is finite

/// The exponent of a number's lowest bit that is set.
int lowest_bit(double value) {
  int exponent = 0;
  const double mantissa = std::frexp(std::abs(value), &exponent);
  const auto bits = static_cast<std::uint64_t>(std::ldexp(mantissa, 53));
  return exponent - 53 + std::countr_zero(bits);
}

}  // namespace

bool sums_exactly(const double* a, const double* b, std::int64_t n, double u) {
  double magnitude = 0.0, unit = INFINITY;
  for (std::int64_t d = 0; d < n; ++d) {
    const double product = a[d] * b[d];
    if (product == 0.0) continue;
    if (!std::isfinite(product) || std::fma(a[d], b[d], -product) != 0.0) return false;
    magnitude += std::abs(product);
    unit = std::min(unit, std::ldexp(1.0, lowest_bit(product)));
  }
  return magnitude == 0.0 || magnitude * u <= unit;
}

bool vanishes_beside(double score, double error, double added, double u) {
  return added != 0.0 && std::abs(score) + error <= 0.25 * u * std::abs(added);
}

double distance(double a, double b) { return std::min(std::abs(a - b), kFar); }

double exponential_error(double error) {
  return error < kFirstOrder ? error : std::expm1(std::min(error, kLargestPower));
}

double WeightRange::least(double score, double error) const { return std::exp(score - maximum_ - error); }
double WeightRange::most(double score, double error) const {
  return std::exp(std::min(score - maximum_ + error, kLargestPower));
}

void WeightRange::add(double score, double error) {
  sum_ += std::exp(score - maximum_);
  least_ += least(score, error);
  most_ += most(score, error);
  wide_ |= error > kFirstOrder && most(score, error) > kNegligible;
}

double WeightRange::error_of(double score, double error) const {
  const double weight = std::exp(score - maximum_) / sum_;
  const double low = least(score, error), high = most(score, error);
  // The others' sums; a difference may fall below 0 by its rounding.
  const double others_least = std::max(0.0, least_ - low), others_most = std::max(0.0, most_ - high);
  return std::max({0.0, high / (high + others_least) - weight, weight - low / (low + others_most)});
}

double WeightRange::log_error() const {
  return std::max(std::log(most_ / sum_), least_ > 0.0 ? std::log(sum_ / least_) : kLargestPower);
}

}  // namespace tilewise::verify
