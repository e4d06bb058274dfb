// One token's routing in double along the reference's formulas, with how far from it a correct kernel may be: its
// scores, whether its choice is beyond doubt, its weights and their gradients.
#pragma once

#include <cstdint>
#include <vector>

#include "tilewise/route.hpp"

namespace tilewise::verify {

/// A number, and how far from it a kernel's may be. An error of 0: every kernel has this number.
struct Inexact {
  double value = 0.0, error = 0.0;
};

class RouteToken {
 public:
  using Numbers = std::vector<double>;
  using Ids = std::vector<std::int64_t>;

  /// `bias` and `scale`, below, are empty where not given.
  RouteToken(const RouteProblem& problem, Numbers logits);

  /// Whether every kernel that rounds as it may chooses the same experts. Equal numbers made of equal ones tie beyond
  /// doubt; different ones that lie within their errors do not.
  [[nodiscard]] bool choice_is_clear(const Numbers& bias) const;
  /// Whether the chosen experts' weights are normalised by a number that is neither lost in rounding nor, where
  /// epsilon bounds it, in doubt.
  [[nodiscard]] bool divisor_is_clear(const Ids& ids) const;
  /// The experts that the reference chooses.
  [[nodiscard]] Ids chosen(const Numbers& bias) const;

  /// Of topk_weights, but for its rounding.
  [[nodiscard]] Numbers weight_errors(const Ids& ids, const Numbers& scale) const;
  /// Of dlogits, likewise. `d` and `ids` are of the experts there are.
  [[nodiscard]] Numbers gradient_errors(const Ids& ids, const Numbers& d, const Numbers& scale) const;

 private:
  [[nodiscard]] Inexact exponential(double difference) const;
  [[nodiscard]] std::vector<Inexact> softmax(const Numbers& x) const;
  [[nodiscard]] Inexact sigmoid(double x) const;
  [[nodiscard]] Inexact sqrt_softplus(double x) const;
  [[nodiscard]] std::vector<Inexact> scores() const;
  [[nodiscard]] std::vector<Inexact> weights(const Ids& ids) const;
  [[nodiscard]] Inexact divisor(const std::vector<Inexact>& weights) const;
  [[nodiscard]] std::vector<Inexact> choices(const Numbers& bias) const;
  [[nodiscard]] Inexact group_value(const std::vector<Inexact>& choices, std::int64_t group) const;
  [[nodiscard]] double slope(double logit, double weight) const;

  RouteProblem p_;
  Numbers logits_;
  double u_, tiny_;
};

}  // namespace tilewise::verify
