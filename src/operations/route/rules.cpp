// What a route problem may be, its normal form, what it asks of implementations, and the memory that it moves.
#include "operations/route/rules.hpp"

#include <cmath>
#include <limits>
#include <string_view>

#include "core/message.hpp"
#include "core/names.hpp"
#include "operations/derived/shapes.hpp"
#include "operations/elements.hpp"
#include "operations/route/features.hpp"
#include "operations/route/schema.hpp"

namespace tilewise::operations::route {
namespace {

using core::invalid_argument, core::invalid_type, core::name_of;

/// Enumerations may come as numbers.
void validate_enumerations(const RouteProblem& p) {
  const auto check = []<typename Enum>(std::string_view name, Enum value) {
    (void)core::value_at<Enum>(name, static_cast<std::int64_t>(value));
  };
  check("score", p.score);
  check("weigh", p.weigh);
  check("normalise", p.normalise);
  check("chosen_by", p.chosen_by);
  check("group_value", p.group_value);
  check("outside_groups", p.outside_groups);
}

void validate_dtypes(const RouteProblem& p) {
  if (!is_element_type(p.dtype)) {
    invalid_type("logits: dtype must be f32, bf16, f16 or f64 (got ", to_string(p.dtype), ")");
  }
  if (p.ids_dtype != DType::i32 && p.ids_dtype != DType::i64) {
    invalid_type("topk_ids: dtype must be i32 or i64 (got ", to_string(p.ids_dtype), ")");
  }
  const bool wide = p.dtype == DType::f64;
  if (!is_element_type(p.weights_dtype) || (p.weights_dtype == DType::f64 && !wide)) {
    invalid_type("topk_weights: dtype must be ", wide ? "f32, bf16, f16 or f64" : "f32, bf16 or f16", " (got ",
                 to_string(p.weights_dtype), ")");
  }
  const auto vector = [](std::string_view name, DType dtype) {
    if (dtype != DType::none && !is_element_type(dtype))
      invalid_type(name, ": dtype must be f32, bf16, f16 or f64 (got ", to_string(dtype), ")");
  };
  vector("bias", p.bias);
  vector("scale_of_expert", p.scale_of_expert);
}

void validate_groups(const RouteProblem& p) {
  if (p.n_group < 1 || p.num_experts % p.n_group != 0) {
    invalid_argument("n_group: must divide num_experts, ", p.num_experts, " (got ", p.n_group, ")");
  }
  if (p.topk_group < 1 || p.topk_group > p.n_group) {
    invalid_argument("topk_group: must be 1 to n_group, ", p.n_group, " (got ", p.topk_group, ")");
  }
  const std::int64_t left = p.topk_group * (p.num_experts / p.n_group);
  if (left < p.top_k) {
    invalid_argument("topk_group: groups that stay must hold top_k experts, ", p.top_k, " (got ", p.topk_group,
                     ", which hold ", left, ")");
  }
}

/// The backward pass is told what was chosen.
void refuse_choice(const RouteProblem& p) {
  const auto refuse = [](bool given, std::string_view name) {
    if (given) invalid_argument(name, ": belongs to route (got it in route_backward)");
  };
  refuse(p.chosen_by != RouteChosenBy::score, "chosen_by");
  refuse(p.bias != DType::none, "bias");
  refuse(p.n_group != 1, "n_group");
  refuse(p.topk_group != 1, "topk_group");
  refuse(p.group_value != RouteGroupValue::max, "group_value");
  refuse(p.outside_groups != RouteOutsideGroups::minus_infinity, "outside_groups");
}

void validate_numbers(const RouteProblem& p) {
  constexpr double kMost = std::numeric_limits<float>::max();
  if (!(p.epsilon >= 0.0 && p.epsilon <= kMost)) {
    invalid_argument("epsilon: must be a number >= 0 that fp32 holds (got ", p.epsilon, ")");
  }
  if (p.epsilon != 0.0 && p.normalise == RouteNormalise::no) {
    invalid_argument("epsilon: requires normalise (got ", p.epsilon, " with normalise=no)");
  }
  if (!(std::abs(p.routed_scaling_factor) <= kMost)) {
    invalid_argument("routed_scaling_factor: must be a finite number that fp32 holds (got ", p.routed_scaling_factor,
                     ")");
  }
}

}  // namespace

void validate(const RouteProblem& problem) {
  validate_enumerations(problem);
  validate_dtypes(problem);
  schema::check_sizes<kSchema>(problem);
  if (problem.top_k > problem.num_experts) {
    invalid_argument("top_k: must be <= num_experts, ", problem.num_experts, " (got ", problem.top_k, ")");
  }
  if (problem.pass == RoutePass::route_backward) refuse_choice(problem);
  if (problem.pass == RoutePass::route) validate_groups(problem);
  validate_numbers(problem);
}

double bytes_moved(const RouteProblem& p) {
  const auto size = [](DType dtype) { return static_cast<double>(size_of(dtype)); };
  const double tokens = static_cast<double>(p.tokens), experts = static_cast<double>(p.num_experts);
  const double passes = p.pass == RoutePass::route ? 1.0 : 2.0;  // the backward pass writes as many as it reads
  return tokens * (passes * experts * size(p.dtype) +
                   static_cast<double>(p.top_k) * (size(p.ids_dtype) + size(p.weights_dtype)));
}

bool uses_score(const RouteProblem& p) {
  return p.weigh == RouteWeigh::score || (p.pass == RoutePass::route && p.chosen_by == RouteChosenBy::score);
}

RouteProblem canonical(RouteProblem p) {
  if (p.n_group >= 1 && p.topk_group == p.n_group) {
    p.n_group = p.topk_group = 1;
    p.group_value = RouteGroupValue::max;
    p.outside_groups = RouteOutsideGroups::minus_infinity;
  }
  if (p.n_group == p.num_experts) p.group_value = RouteGroupValue::max;  // of one expert each
  if (!uses_score(p)) p.score = RouteScore::softmax;
  return p;
}

FeatureSet required_features(const RouteProblem& p) {
  // Every field by name: a new one does not compile until somebody has decided here what it asks for.
  [[maybe_unused]] const auto& [pass, device, dtype, ids_dtype, weights_dtype, tokens, num_experts, top_k, score, weigh,
                                normalise, epsilon, routed_scaling_factor, scale_of_expert, chosen_by, bias, n_group,
                                topk_group, group_value, outside_groups] = p;
  const bool scored = uses_score(p);
  FeatureSet set{feature_of(dtype)};
  const auto need = [&set](Feature feature, bool needed) {
    if (needed) set.insert(feature);
  };
  need(Feature::forward, pass == RoutePass::route);
  need(Feature::backward, pass == RoutePass::route_backward);
  need(Feature::f64, weights_dtype == DType::f64 || scale_of_expert == DType::f64 || bias == DType::f64);
  need(Feature::i64_ids, ids_dtype == DType::i64);
  need(Feature::narrow_weights, weights_dtype == DType::bf16 || weights_dtype == DType::f16);
  need(Feature::softmax, scored && score == RouteScore::softmax);
  need(Feature::sigmoid, scored && score == RouteScore::sigmoid);
  need(Feature::sqrt_softplus, scored && score == RouteScore::sqrt_softplus);
  need(Feature::identity, scored && score == RouteScore::identity);
  need(Feature::by_logits, chosen_by == RouteChosenBy::logits);
  need(Feature::bias, bias != DType::none);
  need(Feature::groups, n_group > 1);
  need(Feature::sum_of_two, group_value == RouteGroupValue::sum_of_two);
  need(Feature::zero_outside, outside_groups == RouteOutsideGroups::zero);
  need(Feature::softmax_of_chosen, weigh == RouteWeigh::softmax_of_chosen);
  need(Feature::sigmoid_of_chosen, weigh == RouteWeigh::sigmoid_of_chosen);
  need(Feature::sum_plus_epsilon, normalise == RouteNormalise::sum_plus_epsilon);
  need(Feature::at_least_epsilon, normalise == RouteNormalise::at_least_epsilon);
  need(Feature::routed_scaling_factor, routed_scaling_factor != 1.0);
  need(Feature::scale_of_expert, scale_of_expert != DType::none);
  return set;
}

}  // namespace tilewise::operations::route
