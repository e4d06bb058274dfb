// What an attention problem may ask of an implementation, feature by feature.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/features.hpp"
#include "operations/attention/rules.hpp"
#include "operations/elements.hpp"
#include "tilewise/problem.hpp"

namespace tilewise::operations::attention {

enum class Feature : std::uint8_t {
  forward,
  backward,
  f32,
  bf16,
  f16,
  f64,
  fp8_e4m3,
  f16_out,       ///< out_dtype f16 beside fp8, which is bf16 else
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
  clear_rest,
  score_mod,
  mask_mod,
  dtables,
  key_indices,
  block_mask,
  count_
};

inline constexpr std::array<std::string_view, static_cast<std::size_t>(Feature::count_)> kFeatureNames{
    "forward",      "backward",  "f32",        "bf16",       "f16",           "f64",
    "fp8_e4m3",     "f16_out",   "gqa",        "head_dim_v", "packed",        "window_left",
    "window_right", "top_left",  "scale_sign", "softcap",    "bias",          "bias_boolean",
    "dbias",        "alibi",     "sink",       "dsink",      "dropout",       "seed_tensor",
    "seqused_q",    "seqused_k", "leftpad_k",  "dlse",       "deterministic", "batch_invariant",
    "clear_rest",   "score_mod", "mask_mod",   "dtables",    "key_indices",   "block_mask"};
static_assert(!kFeatureNames.back().empty());

using FeatureSet = core::FeatureSetOf<Feature>;

/// The feature of an element type of q.
[[nodiscard]] constexpr Feature feature_of(DType dtype) {
  return dtype == DType::fp8_e4m3 ? Feature::fp8_e4m3 : element_feature<Feature>(dtype);
}

/// What a problem asks of an implementation: a pure function, the only copy of this rule.
[[nodiscard]] inline FeatureSet required_features(const AttentionProblem& p) {
  // Every field by name: a new one does not compile until somebody has decided here what it asks for. Scales
  // belong to fp8, and who honours it honours them.
  [[maybe_unused]] const auto& [operation, dtype, out_dtype, device, layout, batch_size, seqlen_q, seqlen_k, total_q,
                                total_k, num_heads_q, num_heads_k, head_dim, head_dim_v, mask, alignment, window_left,
                                window_right, softmax_scale, softcap, dropout_p, seed_tensor, bias, bias_dims,
                                alibi_slopes, sink, seqused_q, seqused_k, leftpad_k, q_scale, k_scale, v_scale,
                                softmax_lse, dlse, dq, dk, dv, dbias, dsink, deterministic, batch_invariant, clear_rest,
                                unaligned, bias_unaligned, score_mod, mask_mod, tables, dtables, top_k,
                                key_indices_per_head, block_mask] = p;
  FeatureSet set{feature_of(dtype)};
  const auto need = [&set](Feature feature, bool needed) {
    if (needed) set.insert(feature);
  };
  const bool backward = operation == Operation::attention_backward;
  need(Feature::forward, !backward);
  need(Feature::backward, backward);
  need(Feature::f16_out, out_dtype == DType::f16);
  need(Feature::gqa, num_heads_q != num_heads_k);
  need(Feature::head_dim_v, head_dim_v != head_dim);
  need(Feature::packed, layout == Layout::thd);
  need(Feature::window_left, window_left >= 0);
  need(Feature::window_right, folded_window_right(p) >= 0);
  need(Feature::top_left, alignment == Alignment::top_left);
  need(Feature::scale_sign, softmax_scale <= 0.0);
  need(Feature::softcap, softcap > 0.0);
  need(Feature::bias, bias != BiasKind::none);
  need(Feature::bias_boolean, bias == BiasKind::boolean);
  need(Feature::dbias, dbias);
  need(Feature::alibi, alibi_slopes != AlibiKind::none);
  need(Feature::sink, sink != SinkKind::none);
  need(Feature::dsink, dsink);
  need(Feature::dropout, dropout_p > 0.0);
  need(Feature::seed_tensor, seed_tensor);
  need(Feature::seqused_q, seqused_q);
  need(Feature::seqused_k, seqused_k);
  need(Feature::leftpad_k, leftpad_k);
  need(Feature::dlse, dlse);
  need(Feature::deterministic, deterministic);
  need(Feature::batch_invariant, batch_invariant);
  need(Feature::clear_rest, clear_rest);
  need(Feature::score_mod, !score_mod.empty());
  need(Feature::mask_mod, !mask_mod.empty());
  need(Feature::dtables, dtables != 0);
  need(Feature::key_indices, top_k > 0);
  need(Feature::block_mask, block_mask.rows != 0);
  return set;
}

[[nodiscard]] inline std::string to_string(FeatureSet features) {
  return core::features_text(features.bits(), kFeatureNames);
}
[[nodiscard]] inline std::string_view to_string(Feature feature) {
  return kFeatureNames[static_cast<std::size_t>(feature)];
}

}  // namespace tilewise::operations::attention
