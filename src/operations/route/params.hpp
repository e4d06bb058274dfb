// What implementations of routing are launched with, both passes.
#pragma once

#include <cstdint>

#include "operations/matrices.hpp"

namespace tilewise::operations::route {

/// s: what the logits become.
enum class Score : std::uint8_t { softmax, sigmoid, sqrt_softplus, identity };
/// c, before the bias: what experts are chosen by.
enum class ChosenBy : std::uint8_t { score, logits };
enum class GroupValue : std::uint8_t { greatest, sum_of_two };
/// c of experts whose group is not chosen.
enum class OutsideGroups : std::uint8_t { minus_infinity, zero };
/// What the chosen experts weigh, before normalisation: s, or a function of the chosen logits alone.
enum class Weigh : std::uint8_t { score, softmax_of_chosen, sigmoid_of_chosen };
/// Division by the weights' sum + epsilon, or by the greater of the two.
enum class Normalise : std::uint8_t { no, sum_plus_epsilon, at_least_epsilon };

struct RouteParams {
  Matrix logits;                 ///< [tokens, num_experts]
  Vector bias, scale_of_expert;  ///< [num_experts]
  Matrix topk_ids;               ///< [tokens, top_k], i32 or i64; backward: read
  Matrix topk_weights;           ///< [tokens, top_k]
  Score score;
  ChosenBy chosen_by;
  std::int64_t n_group, topk_group;  ///< n_group divides num_experts; 1: no groups
  GroupValue group_value;
  OutsideGroups outside_groups;
  Weigh weigh;
  Normalise normalise;
  double epsilon, routed_scaling_factor;

  // Backward: the first is read, the second written.
  Matrix dtopk_weights, dlogits;
};

}  // namespace tilewise::operations::route
