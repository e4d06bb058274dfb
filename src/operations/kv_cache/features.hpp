// What a KV cache problem may ask of an implementation, feature by feature.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/features.hpp"
#include "core/visibility.hpp"
#include "operations/elements.hpp"
#include "tilewise/kv_cache.hpp"

namespace tilewise::operations::kv_cache {

enum class Feature : std::uint8_t {
  attend,
  append,
  f32,
  bf16,
  f16,
  fp8,  ///< caches in fp8 e4m3 ...
  scale_tensor,
  scale_head,
  scale_batch_head,
  scale_token,
  paged,
  packed,  ///< layout thd
  mla,
  slots,
  cache_seqlens,
  cache_batch_idx,
  cache_leftpad,
  rotary,
  rotary_interleaved,
  gqa,           ///< num_heads_q != num_heads_k
  head_dim_v,    ///< head_dim_v != head_dim
  window_left,   ///< window_left >= 0
  window_right,  ///< window_right >= 0, causal included
  scale_sign,    ///< softmax_scale <= 0
  softcap,
  alibi,
  sink,
  num_splits,  ///< of the caller's
  batch_invariant,
  score_mod,
  mask_mod,
  key_indices,
  block_mask,
  count_
};

inline constexpr std::array<std::string_view, static_cast<std::size_t>(Feature::count_)> kFeatureNames{
    "attend",
    "append",
    "f32",
    "bf16",
    "f16",
    "fp8",
    "scale_tensor",
    "scale_head",
    "scale_batch_head",
    "scale_token",
    "paged",
    "packed",
    "mla",
    "slots",
    "cache_seqlens",
    "cache_batch_idx",
    "cache_leftpad",
    "rotary",
    "rotary_interleaved",
    "gqa",
    "head_dim_v",
    "window_left",
    "window_right",
    "scale_sign",
    "softcap",
    "alibi",
    "sink",
    "num_splits",
    "batch_invariant",
    "score_mod",
    "mask_mod",
    "key_indices",
    "block_mask"};
static_assert(!kFeatureNames.back().empty());

using FeatureSet = core::FeatureSetOf<Feature>;

/// What a problem asks of an implementation: a pure function, the only copy of this rule.
[[nodiscard]] TILEWISE_INTERNAL FeatureSet required_features(const KvCacheProblem& problem);

/// The feature of an element type of q.
[[nodiscard]] constexpr Feature feature_of(DType dtype) { return element_feature<Feature>(dtype); }

[[nodiscard]] inline std::string to_string(FeatureSet features) {
  return core::features_text(features.bits(), kFeatureNames);
}

}  // namespace tilewise::operations::kv_cache
