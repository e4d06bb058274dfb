// What a Problem asks of an implementation. The only copy of this rule.
#include "operations/attention/features.hpp"

#include "operations/attention/rules.hpp"

namespace tilewise::operations::attention {
Feature feature_of(DType dtype) {
  return dtype == DType::bf16  ? Feature::bf16
         : dtype == DType::f16 ? Feature::f16
         : dtype == DType::f64 ? Feature::f64
                               : Feature::f32;
}

FeatureSet required_features(const AttentionProblem& p) {
  // Every field by name: a new one does not compile until somebody has decided here what it asks for.
  [[maybe_unused]] const auto& [operation, dtype, device, layout, batch_size, seqlen_q, seqlen_k, total_q, total_k,
                                num_heads_q, num_heads_k, head_dim, head_dim_v, mask, alignment, window_left,
                                window_right, softmax_scale, softcap, dropout_p, seed_tensor, bias, bias_dims,
                                alibi_slopes, sink, seqused_q, seqused_k, leftpad_k, softmax_lse, dlse, dq, dk, dv,
                                dbias, dsink, deterministic, batch_invariant, unaligned] = p;
  FeatureSet set{feature_of(dtype)};
  const auto need = [&set](Feature feature, bool needed) {
    if (needed) set.insert(feature);
  };
  const bool backward = operation == Operation::attention_backward;
  need(Feature::forward, !backward);
  need(Feature::backward, backward);
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
  return set;
}

}  // namespace tilewise::operations::attention
