// The tensors of one call of a linear layer, drawn from a seed for a problem: groups of any size, now and then by
// offsets or counts that are wrong.
#pragma once

#include <cstdint>
#include <vector>

#include "operations/linear/linear.hpp"
#include "verify/schema_call.hpp"

namespace tilewise::verify {

class LinearCall final : public SchemaCall<operations::Linear> {
 public:
  LinearCall(const LinearProblem& problem, std::uint64_t seed, Values values);
  [[nodiscard]] std::vector<ErrorBounds> bounds(const std::vector<Output>& expected,
                                                double /*tanh_error*/) const override;

 private:
  void draw_numbers(Role role, double deviation);
  void draw_scales(Role role);
  void draw_groups();
  void draw_large_values();
  void plant_special_values();

  Random special_rng_;  ///< of its own, so that all else is as without special values
};

/// How far from the reference a correct kernel may be, element by element: sums in fp32, an activation within a few
/// roundings, and in the backward pass gradients rounded to the dtype of x before they are multiplied. As in
/// error_bounds.hpp.
[[nodiscard]] std::vector<ErrorBounds> linear_bounds(const operations::linear::LinearParams& params,
                                                     const LinearProblem& problem, const std::vector<Output>& expected);

}  // namespace tilewise::verify
