// What a merge problem asks of an implementation. The only copy of this rule.
#include "operations/merge/features.hpp"

#include "operations/merge/rules.hpp"

namespace tilewise::operations::merge {

Feature feature_of(DType dtype) {
  return dtype == DType::bf16  ? Feature::bf16
         : dtype == DType::f16 ? Feature::f16
         : dtype == DType::f64 ? Feature::f64
                               : Feature::f32;
}

FeatureSet required_features(const MergeProblem& p) {
  // Every field by name: a new one does not compile until somebody has decided here what it asks for.
  [[maybe_unused]] const auto& [pass, dtype, parts_dtype, device, layout, parts, batch_size, seqlen_q, num_heads_q,
                                head_dim_v, sink, stacked, softmax_lse, dlse, douts, dlses, dsink, unaligned] = p;
  FeatureSet set{feature_of(dtype)};
  const auto need = [&set](Feature feature, bool needed) {
    if (needed) set.insert(feature);
  };
  need(Feature::forward, pass == MergePass::merge);
  need(Feature::backward, pass == MergePass::merge_backward);
  need(Feature::f32_parts, parts_dtype == PartsDType::f32 && dtype != DType::f32);
  need(Feature::mixed_parts, parts_dtype == PartsDType::mixed);
  need(Feature::packed, layout == Layout::thd);
  need(Feature::stacked, stacked);
  need(Feature::sink, sink != MergeSink::none);
  need(Feature::dlse, dlse);
  need(Feature::dsink, dsink);
  return set;
}

}  // namespace tilewise::operations::merge
