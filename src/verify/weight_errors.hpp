// What large scores do to the error model: weights whose scores may be off by whole units of an exponent, and scores
// that nothing puts off, since every sum on their way is exact or lost beside a larger number. Rows of equal scores and
// keys that win alone are so held to their exact weights however large the scores are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tilewise::verify {

/// Whether numbers of unit roundoff `u` sum the products a[d] * b[d] exactly in any order: all are multiples of one
/// power of two, and their magnitudes add up to less than 1 / u of it.
[[nodiscard]] bool sums_exactly(const double* a, const double* b, std::int64_t n, double u);

/// Whether a score, off by `error`, leaves no trace beside what is added to it.
[[nodiscard]] bool vanishes_beside(double score, double error, double added, double u);

/// Of two scores; those so far apart that the weight is 0 count as no farther, lest it be infinite.
[[nodiscard]] double distance(double a, double b);

/// Relative error of exp(x) where x is off by `error`.
[[nodiscard]] double exponential_error(double error);

/// The weights of one row between the least and the most that they can be.
class WeightRange {
 public:
  /// maximum: of the scores. The sink, if any, is added as a score without an error.
  explicit WeightRange(double maximum) : maximum_(maximum) {}

  void add(double score, double error);
  /// Whether the errors ask for this class: they are too large for the first order.
  [[nodiscard]] bool wide() const { return wide_; }
  [[nodiscard]] std::size_t size() const { return weights_.size(); }
  /// How far the weight of the nth score that was added may be off.
  [[nodiscard]] double error_of(std::size_t n) const;
  /// How far the logarithm of the sum may be off.
  [[nodiscard]] double log_error() const;

 private:
  double maximum_;
  std::vector<double> weights_, least_, most_;  // before they are divided by their sum
  bool wide_ = false;
};

}  // namespace tilewise::verify
