// See weight_errors.hpp.
#include "verify/weight_errors.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

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

void WeightRange::add(double score, double error) {
  weights_.push_back(std::exp(score - maximum_));
  least_.push_back(std::exp(score - maximum_ - error));
  most_.push_back(std::exp(std::min(score - maximum_ + error, kLargestPower)));
  wide_ |= error > kFirstOrder && most_.back() > kNegligible;
}

double WeightRange::error_of(std::size_t n) const {
  double sum = 0.0, others_least = 0.0, others_most = 0.0;  // no differences: one score may be nearly all of a sum
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    sum += weights_[i];
    if (i == n) continue;
    others_least += least_[i];
    others_most += most_[i];
  }
  const double weight = weights_[n] / sum;
  return std::max({0.0, most_[n] / (most_[n] + others_least) - weight, weight - least_[n] / (least_[n] + others_most)});
}

double WeightRange::log_error() const {
  const auto total = [](const std::vector<double>& terms) { return std::accumulate(terms.begin(), terms.end(), 0.0); };
  const double sum = total(weights_), least = total(least_);
  return std::max(std::log(total(most_) / sum), least > 0.0 ? std::log(sum / least) : kLargestPower);
}

}  // namespace tilewise::verify
