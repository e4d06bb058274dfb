// What a quantize problem may ask of an implementation, feature by feature.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/features.hpp"
#include "core/visibility.hpp"
#include "operations/elements.hpp"
#include "tilewise/quantize.hpp"

namespace tilewise::operations::quantize {

enum class Feature : std::uint8_t {
  quantize,
  dequantize,
  f32,
  bf16,
  f16,
  fp8_tensor,
  fp8_row,
  fp8_1x128,
  fp8_128x128,
  e8m0_blocks,  ///< scales in fp8_e8m0 of blocks of 128
  mxfp8,
  mxfp4,
  nvfp4,
  power_of_two,
  stacked,
  count_
};

inline constexpr std::array<std::string_view, static_cast<std::size_t>(Feature::count_)> kFeatureNames{
    "quantize",    "dequantize",  "f32",   "bf16",  "f16",   "fp8_tensor",   "fp8_row", "fp8_1x128",
    "fp8_128x128", "e8m0_blocks", "mxfp8", "mxfp4", "nvfp4", "power_of_two", "stacked"};
static_assert(!kFeatureNames.back().empty());

using FeatureSet = core::FeatureSetOf<Feature>;

/// What a problem asks of an implementation: a pure function, the only copy of this rule.
[[nodiscard]] TILEWISE_INTERNAL FeatureSet required_features(const QuantizeProblem& problem);

/// The feature of an element type of the numbers.
[[nodiscard]] constexpr Feature feature_of(DType dtype) { return element_feature<Feature>(dtype); }

[[nodiscard]] inline std::string to_string(FeatureSet features) {
  return core::features_text(features.bits(), kFeatureNames);
}

}  // namespace tilewise::operations::quantize
