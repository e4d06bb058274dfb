// The tensors of one call of experts, drawn from a seed for a problem: ids in any distribution, some of them nobody's.
#pragma once

#include <cstdint>
#include <vector>

#include "operations/moe/moe.hpp"
#include "verify/schema_call.hpp"

namespace tilewise::verify {

class MoeCall final : public SchemaCall<operations::Moe> {
 public:
  MoeCall(const MoeProblem& problem, std::uint64_t seed, Values values);
  [[nodiscard]] std::vector<ErrorBounds> bounds(const std::vector<Output>& expected,
                                                double /*tanh_error*/) const override;

 private:
  void draw_numbers(Role role, double deviation);
  void draw_scales(Role role, double largest);
  void draw_ids();
  [[nodiscard]] std::int64_t wrong_id(DType dtype);
  void draw_large_values();
  void plant_special_values();

  Random special_rng_;  ///< of its own, so that all else is as without special values
};

/// How far from the reference a correct kernel may be, element by element: both products in fp32, an activation within
/// a few roundings, intermediate values rounded to their dtype or format, parts to the dtype of x. In the backward pass
/// gradients are rounded to that too before they are multiplied, and whatever a number that is none touches is free. As
/// in error_bounds.hpp.
[[nodiscard]] std::vector<ErrorBounds> moe_bounds(const operations::moe::MoeParams& params, const MoeProblem& problem,
                                                  const std::vector<Output>& expected);

}  // namespace tilewise::verify
