// What a problem of experts may ask of an implementation, feature by feature.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/features.hpp"
#include "core/visibility.hpp"
#include "operations/elements.hpp"
#include "tilewise/moe.hpp"

namespace tilewise::operations::moe {

enum class Feature : std::uint8_t {
  forward,
  backward,
  f32,
  bf16,
  f16,
  f64,
  out_dtype,    ///< out in another element type than x, neither being quantised
  x_quantised,  ///< x in fp8 with scales; what x is not, weights may still be
  h_quantised,  ///< intermediate values are
  // Formats of x, of intermediate values or of weights.
  fp8_tensor,
  fp8_row,
  fp8_1x128,
  fp8_128x128,
  e8m0_blocks,  ///< scales in fp8_e8m0 of blocks of 128
  mxfp8,
  mxfp4,
  nvfp4,
  no_gate,
  interleaved,
  activation,  ///< another one than silu, without alpha
  swiglu_oai,
  clamp,
  bias,
  norm,
  weight_on_input,
  first_expert,
  transposed,  ///< weights or their gradients are
  batch_invariant,
  save_gate_up,
  dx,
  dtopk_weights,
  dweights,
  dbias,
  count_
};

inline constexpr std::array<std::string_view, static_cast<std::size_t>(Feature::count_)> kFeatureNames{
    "forward",
    "backward",
    "f32",
    "bf16",
    "f16",
    "f64",
    "out_dtype",
    "x_quantised",
    "h_quantised",
    "fp8_tensor",
    "fp8_row",
    "fp8_1x128",
    "fp8_128x128",
    "e8m0_blocks",
    "mxfp8",
    "mxfp4",
    "nvfp4",
    "no_gate",
    "interleaved",
    "activation",
    "swiglu_oai",
    "clamp",
    "bias",
    "norm",
    "weight_on_input",
    "first_expert",
    "transposed",
    "batch_invariant",
    "save_gate_up",
    "dx",
    "dtopk_weights",
    "dweights",
    "dbias"};
static_assert(!kFeatureNames.back().empty());

using FeatureSet = core::FeatureSetOf<Feature>;

/// What a problem asks of an implementation: a pure function, the only copy of this rule.
[[nodiscard]] TILEWISE_INTERNAL FeatureSet required_features(const MoeProblem& problem);

/// The feature of an element type of x that is not quantised.
[[nodiscard]] constexpr Feature feature_of(DType dtype) { return element_feature<Feature>(dtype); }

[[nodiscard]] inline std::string to_string(FeatureSet features) {
  return core::features_text(features.bits(), kFeatureNames);
}

}  // namespace tilewise::operations::moe
