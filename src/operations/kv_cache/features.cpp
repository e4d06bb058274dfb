// What a KV cache problem asks of an implementation. The only copy of this rule.
#include "operations/kv_cache/features.hpp"

#include "operations/kv_cache/rules.hpp"

namespace tilewise::operations::kv_cache {

FeatureSet required_features(const KvCacheProblem& p) {
  // Every field by name: a new one does not compile until somebody has decided here what it asks for.
  [[maybe_unused]] const auto& [call, dtype, cache_dtype, device, layout, batch_size, seqlen_q, total_q, seqlen_k_new,
                                total_k_new, num_heads_q, num_heads_k, head_dim, head_dim_v, batch_size_cache, capacity,
                                page_size, num_pages, max_pages_per_seq, append, mla, scales, slots, cache_seqlens,
                                cache_batch_idx, cache_leftpad, rotary, rotary_dim, rotary_offset, rotary_interleaved,
                                rotary_seqlens, mask, window_left, window_right, softmax_scale, softcap, alibi_slopes,
                                sink, num_splits, softmax_lse, batch_invariant, unaligned, score_mod, mask_mod, tables,
                                top_k, key_indices_per_head, block_mask] = p;
  FeatureSet set{feature_of(dtype)};
  const auto need = [&set](Feature feature, bool needed) {
    if (needed) set.insert(feature);
  };
  const bool attends = call == KvCacheCall::kv_cache_attention;
  need(Feature::attend, attends);
  need(Feature::append, appends(p));
  need(Feature::fp8, is_fp8(p));
  need(Feature::scale_tensor, scales == CacheScales::tensor);
  need(Feature::scale_head, scales == CacheScales::head);
  need(Feature::scale_batch_head, scales == CacheScales::batch_head);
  need(Feature::scale_token, scales == CacheScales::token);
  need(Feature::paged, is_paged(p));
  need(Feature::packed, is_packed(p));
  need(Feature::mla, mla);
  need(Feature::slots, slots != SlotKind::none);
  need(Feature::cache_seqlens, cache_seqlens);
  need(Feature::cache_batch_idx, cache_batch_idx);
  need(Feature::cache_leftpad, cache_leftpad);
  need(Feature::rotary, rotary_dim > 0);
  need(Feature::rotary_interleaved, rotary_dim > 0 && rotary_interleaved);
  need(Feature::gqa, attends && num_heads_q != num_heads_k);
  need(Feature::head_dim_v, head_dim_v != head_dim);
  need(Feature::window_left, window_left >= 0);
  need(Feature::window_right, folded_window_right(p) >= 0);
  need(Feature::scale_sign, attends && softmax_scale <= 0.0);
  need(Feature::softcap, softcap > 0.0);
  need(Feature::alibi, alibi_slopes != AlibiKind::none);
  need(Feature::sink, sink != SinkKind::none);
  need(Feature::num_splits, num_splits > 0);
  need(Feature::batch_invariant, batch_invariant);
  need(Feature::score_mod, !score_mod.empty());
  need(Feature::mask_mod, !mask_mod.empty());
  need(Feature::key_indices, top_k > 0);
  need(Feature::block_mask, has_block_mask(p));
  return set;
}

}  // namespace tilewise::operations::kv_cache
