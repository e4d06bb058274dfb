// The tensors of one route call, drawn from a seed for a problem: ties among the logits, and no choice or divisor that
// rounding decides, so that ids compare exactly.
#pragma once

#include <cstdint>
#include <vector>

#include "operations/route/route.hpp"
#include "verify/route_token.hpp"
#include "verify/schema_call.hpp"

namespace tilewise::verify {

class RouteCall final : public SchemaCall<operations::Route> {
 public:
  RouteCall(const RouteProblem& problem, std::uint64_t seed, Values values);
  [[nodiscard]] std::vector<Output> make_outputs(std::uint64_t seed) const override;
  [[nodiscard]] std::vector<ErrorBounds> bounds(const std::vector<Output>& expected,
                                                double /*tanh_error*/) const override;

 private:
  void draw_vectors();
  void draw_token(std::int64_t token);
  [[nodiscard]] std::vector<double> draw_logits(std::int64_t attempt);
  void plant_special_values(std::vector<double>& logits);
  void draw_ids(std::int64_t token);
  [[nodiscard]] bool is_clear(std::int64_t token) const;
  /// Of the row's choices those that are experts: the experts, and their places in the row.
  struct Chosen {
    RouteToken::Ids ids, places;
  };
  [[nodiscard]] static Chosen read_ids(const TensorView& ids, std::int64_t token, std::int64_t num_experts);

  Values values_;
  RouteToken::Numbers bias_, scale_;
  Random special_rng_;  ///< of its own, so that all else is as without special values
};

}  // namespace tilewise::verify
