// What a route problem may ask of an implementation, feature by feature.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/features.hpp"
#include "core/visibility.hpp"
#include "operations/elements.hpp"
#include "tilewise/route.hpp"

namespace tilewise::operations::route {

enum class Feature : std::uint8_t {
  forward,
  backward,
  f32,  ///< of the logits
  bf16,
  f16,
  f64,             ///< of any tensor
  i64_ids,         ///< topk_ids
  narrow_weights,  ///< topk_weights in bf16 or f16
  softmax,
  sigmoid,
  sqrt_softplus,
  identity,
  by_logits,
  bias,
  groups,
  sum_of_two,
  zero_outside,
  softmax_of_chosen,
  sigmoid_of_chosen,
  sum_plus_epsilon,
  at_least_epsilon,
  routed_scaling_factor,
  scale_of_expert,
  count_
};

inline constexpr std::array<std::string_view, static_cast<std::size_t>(Feature::count_)> kFeatureNames{
    "forward",
    "backward",
    "f32",
    "bf16",
    "f16",
    "f64",
    "i64_ids",
    "narrow_weights",
    "softmax",
    "sigmoid",
    "sqrt_softplus",
    "identity",
    "by_logits",
    "bias",
    "groups",
    "sum_of_two",
    "zero_outside",
    "softmax_of_chosen",
    "sigmoid_of_chosen",
    "sum_plus_epsilon",
    "at_least_epsilon",
    "routed_scaling_factor",
    "scale_of_expert"};
static_assert(!kFeatureNames.back().empty());

using FeatureSet = core::FeatureSetOf<Feature>;

/// What a problem asks of an implementation: a pure function, the only copy of this rule.
[[nodiscard]] TILEWISE_INTERNAL FeatureSet required_features(const RouteProblem& problem);

/// The feature of an element type of the logits.
[[nodiscard]] constexpr Feature feature_of(DType dtype) { return element_feature<Feature>(dtype); }

[[nodiscard]] inline std::string to_string(FeatureSet features) {
  return core::features_text(features.bits(), kFeatureNames);
}

}  // namespace tilewise::operations::route
