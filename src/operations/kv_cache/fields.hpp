// The one list of a KV cache problem's fields: problem text, hash, random drawing and the checks of other lists are
// driven by it.
#pragma once

#include <cstdint>
#include <limits>
#include <string_view>

#include "core/problem_text.hpp"
#include "operations/kv_cache/names.hpp"
#include "operations/kv_cache/rules.hpp"
#include "tilewise/kv_cache.hpp"

namespace tilewise::operations::kv_cache {

[[nodiscard]] inline std::int64_t saturating_product(std::int64_t a, std::int64_t b) {
  std::int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? std::numeric_limits<std::int64_t>::max() : product;
}

/// What attention has beside the append.
template <typename Visit>
void for_each_attention_field(KvCacheProblem& p, Visit&& visit) {
  const KvCacheProblem fresh;
  visit("mask", p.mask, fresh.mask);
  visit("window_left", p.window_left, fresh.window_left);
  visit("window_right", p.window_right, fresh.window_right);
  visit("softmax_scale", p.softmax_scale, default_softmax_scale(p.head_dim));
  visit("softcap", p.softcap, fresh.softcap);
  visit("alibi_slopes", p.alibi_slopes, fresh.alibi_slopes);
  visit("sink", p.sink, fresh.sink);
  visit("num_splits", p.num_splits, fresh.num_splits);
  visit("softmax_lse", p.softmax_lse, fresh.softmax_lse);
  visit("batch_invariant", p.batch_invariant, fresh.batch_invariant);
}

/// Where the cache keeps what.
template <typename Visit>
void for_each_cache_field(KvCacheProblem& p, Visit&& visit) {
  using core::kRequired;
  const KvCacheProblem fresh;
  if (appends_alone(p)) visit("slots", p.slots, fresh.slots);
  visit("page_size", p.page_size, std::int64_t{p.slots == SlotKind::none ? 0 : 1});
  if (is_paged(p)) {
    visit("num_pages", p.num_pages, kRequired);
    if (p.slots == SlotKind::none) visit("max_pages_per_seq", p.max_pages_per_seq, kRequired);
  } else {
    visit("cache_batch_idx", p.cache_batch_idx, fresh.cache_batch_idx);
    visit("cache_leftpad", p.cache_leftpad, fresh.cache_leftpad);
    visit("batch_size_cache", p.batch_size_cache, p.batch_size);
    visit("capacity", p.capacity, kRequired);
  }
  visit("scales", p.scales, is_fp8(p) ? CacheScales::tensor : CacheScales::none);
  visit("cache_seqlens", p.cache_seqlens, fresh.cache_seqlens);
}

/// See core/problem_text.hpp. The call itself is a text's first word.
template <typename Visit>
void for_each_field(KvCacheProblem& p, Visit&& visit) {
  using core::kRequired;
  const KvCacheProblem fresh;
  const bool alone = appends_alone(p);
  visit("device", p.device, fresh.device);
  visit("dtype", p.dtype, fresh.dtype);
  visit("cache_dtype", p.cache_dtype, p.dtype);
  visit("layout", p.layout, fresh.layout);
  const bool packed = is_packed(p);
  visit("batch_size", p.batch_size, fresh.batch_size);
  if (!alone) visit(packed ? "max_seqlen_q" : "seqlen_q", p.seqlen_q, kRequired);
  if (!alone && packed) visit("total_q", p.total_q, saturating_product(p.batch_size, p.seqlen_q));
  if (alone) p.append = true;
  if (!alone) visit("append", p.append, fresh.append);
  if (p.append) {
    visit(packed ? "max_seqlen_k_new" : "seqlen_k_new", p.seqlen_k_new, alone ? std::int64_t{1} : p.seqlen_q);
    if (packed) visit("total_k_new", p.total_k_new, saturating_product(p.batch_size, p.seqlen_k_new));
  }
  if (!alone) visit("num_heads_q", p.num_heads_q, fresh.num_heads_q);
  visit("num_heads_k", p.num_heads_k, alone ? std::int64_t{1} : p.num_heads_q);
  if (alone) p.num_heads_q = p.num_heads_k;
  visit("head_dim", p.head_dim, kRequired);
  visit("head_dim_v", p.head_dim_v, p.head_dim);
  visit("mla", p.mla, fresh.mla);
  for_each_cache_field(p, visit);
  visit("rotary_dim", p.rotary_dim, fresh.rotary_dim);
  visit("rotary", p.rotary, p.rotary_dim > 0 ? RotaryKind::f32 : RotaryKind::none);
  visit("rotary_offset", p.rotary_offset, fresh.rotary_offset);
  visit("rotary_interleaved", p.rotary_interleaved, fresh.rotary_interleaved);
  visit("rotary_seqlens", p.rotary_seqlens, fresh.rotary_seqlens);
  if (!alone) for_each_attention_field(p, visit);
  visit("unaligned", p.unaligned, fresh.unaligned);
}

/// Throws for a word that is no key of problems like `problem`, with what was probably meant.
[[noreturn]] void refuse_key(std::string_view key, const KvCacheProblem& problem);

}  // namespace tilewise::operations::kv_cache
