// What an attention problem may ask of an implementation, feature by feature.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/features.hpp"
#include "tilewise/problem.hpp"

namespace tilewise::operations::attention {

enum class Feature : std::uint8_t {
  forward,
  backward,
  f32,
  bf16,
  f16,
  f64,
  gqa,           ///< num_heads_q != num_heads_k
  head_dim_v,    ///< head_dim_v != head_dim
  packed,        ///< layout thd with cu_seqlens
  window_left,   ///< window_left >= 0
  window_right,  ///< window_right >= 0, causal included
  top_left,
  scale_sign,  ///< softmax_scale <= 0
  softcap,
  bias,
  bias_boolean,
  dbias,
  alibi,
  sink,
  dsink,
  dropout,
  seed_tensor,
  seqused_q,
  seqused_k,
  leftpad_k,
  dlse,
  deterministic,
  batch_invariant,
  count_
};

inline constexpr std::array<std::string_view, static_cast<std::size_t>(Feature::count_)> kFeatureNames{
    "forward",     "backward",     "f32",         "bf16",         "f16",      "f64",           "gqa",
    "head_dim_v",  "packed",       "window_left", "window_right", "top_left", "scale_sign",    "softcap",
    "bias",        "bias_boolean", "dbias",       "alibi",        "sink",     "dsink",         "dropout",
    "seed_tensor", "seqused_q",    "seqused_k",   "leftpad_k",    "dlse",     "deterministic", "batch_invariant"};
static_assert(!kFeatureNames.back().empty());

using FeatureSet = core::FeatureSetOf<Feature>;

/// What a problem asks of an implementation: a pure function, the only copy of this rule.
[[nodiscard]] FeatureSet required_features(const AttentionProblem& problem);

/// The feature of an element type of q.
[[nodiscard]] Feature feature_of(DType dtype);

[[nodiscard]] inline std::string to_string(FeatureSet features) {
  return core::features_text(features.bits(), kFeatureNames);
}
[[nodiscard]] inline std::string_view to_string(Feature feature) {
  return kFeatureNames[static_cast<std::size_t>(feature)];
}

}  // namespace tilewise::operations::attention
