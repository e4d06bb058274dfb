// What a merge problem may ask of an implementation, feature by feature.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/features.hpp"
#include "core/visibility.hpp"
#include "operations/elements.hpp"
#include "tilewise/merge.hpp"

namespace tilewise::operations::merge {

enum class Feature : std::uint8_t {
  forward,
  backward,
  f32,
  bf16,
  f16,
  f64,
  f32_parts,    ///< parts in f32 of an out in bf16 or f16
  mixed_parts,  ///< some parts in f32, some in the dtype of out
  packed,       ///< layout thd
  stacked,
  sink,
  dlse,
  dsink,
  count_
};

inline constexpr std::array<std::string_view, static_cast<std::size_t>(Feature::count_)> kFeatureNames{
    "forward",     "backward", "f32",     "bf16", "f16",  "f64",  "f32_parts",
    "mixed_parts", "packed",   "stacked", "sink", "dlse", "dsink"};
static_assert(!kFeatureNames.back().empty());

using FeatureSet = core::FeatureSetOf<Feature>;

/// What a problem asks of an implementation: a pure function, the only copy of this rule.
[[nodiscard]] TILEWISE_INTERNAL FeatureSet required_features(const MergeProblem& problem);

/// The feature of an element type of out.
[[nodiscard]] constexpr Feature feature_of(DType dtype) { return element_feature<Feature>(dtype); }

[[nodiscard]] inline std::string to_string(FeatureSet features) {
  return core::features_text(features.bits(), kFeatureNames);
}

}  // namespace tilewise::operations::merge
