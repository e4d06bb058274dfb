// What implementations of route are launched with, both passes.
#pragma once

#include <cstdint>

#include "core/visibility.hpp"
#include "operations/matrices.hpp"
#include "operations/route/schema.hpp"
#include "tilewise/route.hpp"

namespace tilewise::operations::route {

struct RouteParams {
  Matrix logits;                 ///< [tokens, num_experts]
  Vector bias, scale_of_expert;  ///< [num_experts]
  Matrix topk_ids;               ///< [tokens, top_k], i32 or i64; backward: read
  Matrix topk_weights;           ///< [tokens, top_k]
  RouteScore score;
  RouteChosenBy chosen_by;
  std::int64_t n_group, topk_group;  ///< n_group divides num_experts; 1: no groups
  RouteGroupValue group_value;
  RouteOutsideGroups outside_groups;
  RouteWeigh weigh;
  RouteNormalise normalise;
  double epsilon, routed_scaling_factor;  ///< fp32 numbers, unless the logits are f64

  // Backward: the first is read, the second written.
  Matrix dtopk_weights, dlogits;
};

/// In its normal form. Throws Error naming the first bad argument.
[[nodiscard]] TILEWISE_INTERNAL RouteProblem describe(const Call& call);
/// The parameters of a call that describes to `problem`.
[[nodiscard]] TILEWISE_INTERNAL RouteParams make_params(const Call& call, const RouteProblem& problem);

}  // namespace tilewise::operations::route
