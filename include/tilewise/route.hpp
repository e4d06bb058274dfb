// Routing of tokens to experts, and its gradients: the short way (route, route_backward) and the planned way
// (describe, plan, run). Meaning: docs/semantics.md, "Routing".
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "tilewise/any_problem.hpp"
#include "tilewise/error.hpp"
#include "tilewise/export.h"
#include "tilewise/plan.hpp"
#include "tilewise/tensor.hpp"

namespace tilewise {

enum class RoutePass : std::uint8_t { route, route_backward };
/// s: what the logits become, softmax over all experts.
enum class RouteScore : std::uint8_t { softmax, sigmoid, sqrt_softplus, identity };
/// c, before the bias: what experts are chosen by.
enum class RouteChosenBy : std::uint8_t { score, logits };
/// Of a group of experts: its greatest c, or the sum of its two greatest.
enum class RouteGroupValue : std::uint8_t { max, sum_of_two };
/// c of experts whose group does not stay.
enum class RouteOutsideGroups : std::uint8_t { minus_infinity, zero };
/// What the chosen experts weigh before normalisation: s, or a function of their logits alone.
enum class RouteWeigh : std::uint8_t { score, softmax_of_chosen, sigmoid_of_chosen };
/// Division by the weights' sum + epsilon, or by the greater of the two.
enum class RouteNormalise : std::uint8_t { no, sum_plus_epsilon, at_least_epsilon };

/// A value: hashable, comparable, printable. Invariants are checked by validate(), not here.
struct RouteProblem {
  RoutePass pass = RoutePass::route;
  DeviceType device = DeviceType::cpu;
  DType dtype = DType::f32;          ///< of logits and their gradient
  DType ids_dtype = DType::i32;      ///< of topk_ids
  DType weights_dtype = DType::f32;  ///< of topk_weights and their gradient

  std::int64_t tokens = 0;
  std::int64_t num_experts = 1;
  std::int64_t top_k = 1;

  RouteScore score = RouteScore::softmax;
  RouteWeigh weigh = RouteWeigh::score;
  RouteNormalise normalise = RouteNormalise::no;
  double epsilon = 0.0;
  double routed_scaling_factor = 1.0;
  DType scale_of_expert = DType::none;  ///< its element type; none: not given

  // Of route alone.
  RouteChosenBy chosen_by = RouteChosenBy::score;
  DType bias = DType::none;  ///< its element type; none: not given
  std::int64_t n_group = 1;
  std::int64_t topk_group = 1;
  RouteGroupValue group_value = RouteGroupValue::max;
  RouteOutsideGroups outside_groups = RouteOutsideGroups::minus_infinity;

  friend bool operator==(const RouteProblem&, const RouteProblem&) = default;
};

[[nodiscard]] TILEWISE_EXPORT const core::OperationInterface& operation_of(const RouteProblem* tag) noexcept;

[[nodiscard]] TILEWISE_EXPORT std::size_t hash_value(const RouteProblem& problem) noexcept;

/// E.g. "route dtype=bf16 tokens=512 num_experts=256 top_k=8 score=sigmoid normalise=sum_plus_epsilon epsilon=1e-20
/// routed_scaling_factor=2.5 bias=f32 n_group=8 topk_group=4 group_value=sum_of_two". Without topk_group all groups
/// stay.
[[nodiscard]] TILEWISE_EXPORT std::string to_string(const RouteProblem& problem);

TILEWISE_EXPORT void validate(const RouteProblem& problem);

/// Scores are fp32 (f64 where the logits are), and experts are compared in fp32: ties go to the lower expert, a NaN
/// counts as greatest, no expert is chosen twice. Any strides. What is written must share no element with what is read,
/// with another output or with itself.
struct RouteArguments {
  TensorView logits;           ///< f32, bf16, f16 or f64, [tokens, num_experts]
  TensorView bias;             ///< f32, bf16, f16 or f64, [num_experts], added to c: it never weighs; or undefined
  TensorView scale_of_expert;  ///< f32, bf16, f16 or f64, [num_experts], times the weight at last; or undefined
  TensorView topk_ids;         ///< written; i32 or i64, [tokens, top_k], in descending order of c
  TensorView topk_weights;     ///< written; f32, bf16, f16, or f64 where the logits are, [tokens, top_k]
  RouteScore score = RouteScore::softmax;
  RouteWeigh weigh = RouteWeigh::score;
  RouteNormalise normalise = RouteNormalise::no;
  double epsilon = 0.0;
  double routed_scaling_factor = 1.0;
  RouteChosenBy chosen_by = RouteChosenBy::score;
  std::int64_t n_group = 1;     ///< neighbours each; divides num_experts
  std::int64_t topk_group = 1;  ///< so many groups stay, which hold at least top_k experts
  RouteGroupValue group_value = RouteGroupValue::max;
  RouteOutsideGroups outside_groups = RouteOutsideGroups::minus_infinity;
};

/// The choice has no gradient: the logits of the chosen experts have one through their weights, those of the others
/// through a softmax over all experts, else 0.
struct RouteBackwardArguments {
  TensorView logits;           ///< as the forward pass took them
  TensorView scale_of_expert;  ///< likewise
  TensorView topk_ids;         ///< as it wrote them; an id that is no expert's counts for nothing
  TensorView dtopk_weights;    ///< gradient of topk_weights, in its dtype
  TensorView dlogits;          ///< written; like logits
  RouteScore score = RouteScore::softmax;
  RouteWeigh weigh = RouteWeigh::score;
  RouteNormalise normalise = RouteNormalise::no;
  double epsilon = 0.0;
  double routed_scaling_factor = 1.0;
};

/// The problem that a call describes. Throws Error naming the first bad argument.
[[nodiscard]] TILEWISE_EXPORT RouteProblem describe(const RouteArguments& arguments);
[[nodiscard]] TILEWISE_EXPORT RouteProblem describe(const RouteBackwardArguments& arguments);

/// Executes a plan on tensors that describe to the plan's problem (checked); see attention's run().
TILEWISE_EXPORT void run(const Plan& plan, const RouteArguments& arguments, void* workspace = nullptr,
                         void* stream = nullptr);
TILEWISE_EXPORT void run(const Plan& plan, const RouteBackwardArguments& arguments, void* workspace = nullptr,
                         void* stream = nullptr);

/// Describe, plan and run in one call; see attention_forward().
TILEWISE_EXPORT void route(const RouteArguments& arguments, const SelectOptions& select = {}, void* stream = nullptr);
TILEWISE_EXPORT void route_backward(const RouteBackwardArguments& arguments, const SelectOptions& select = {},
                                    void* stream = nullptr);

}  // namespace tilewise
