// Pure rules about a KV cache problem that more than one file needs: defaults, what the cache holds, the one normal
// form.
#pragma once

#include <cmath>
#include <cstdint>

#include "operations/block_mask.hpp"
#include "operations/score_functions.hpp"
#include "operations/selected_keys.hpp"
#include "tilewise/kv_cache.hpp"

namespace tilewise::operations::kv_cache {

[[nodiscard]] constexpr bool appends_alone(const KvCacheProblem& p) { return p.call == KvCacheCall::append_kv; }
/// Whether new keys come along; of append_kv, whatever its problem says.
[[nodiscard]] constexpr bool appends(const KvCacheProblem& p) { return p.append || appends_alone(p); }
[[nodiscard]] constexpr bool is_packed(const KvCacheProblem& p) { return p.layout == Layout::thd; }
[[nodiscard]] constexpr bool is_paged(const KvCacheProblem& p) { return p.page_size > 0; }
[[nodiscard]] constexpr bool is_fp8(const KvCacheProblem& p) { return p.cache_dtype == DType::fp8_e4m3; }

/// 1/sqrt(head_dim).
[[nodiscard]] inline double default_softmax_scale(std::int64_t head_dim) {
  return 1.0 / std::sqrt(static_cast<double>(head_dim));
}

/// Places that a sequence may have. Of a validated problem, so that it fits.
[[nodiscard]] constexpr std::int64_t capacity_of(const KvCacheProblem& p) {
  return is_paged(p) ? p.page_size * p.max_pages_per_seq : p.capacity;
}

/// Rows of q and of new keys in memory.
[[nodiscard]] constexpr std::int64_t rows_of_queries(const KvCacheProblem& p) {
  return is_packed(p) ? p.total_q : p.batch_size * p.seqlen_q;
}
[[nodiscard]] constexpr std::int64_t rows_of_new_keys(const KvCacheProblem& p) {
  return is_packed(p) ? p.total_k_new : p.batch_size * p.seqlen_k_new;
}

/// window_right with the causal mask folded in; -1: unbounded.
[[nodiscard]] constexpr std::int64_t folded_window_right(const KvCacheProblem& p) {
  return p.mask == Mask::causal ? 0 : p.window_right;
}

/// Whether query t stands at a position of its own: rotated by p + t, and not by p.
[[nodiscard]] constexpr bool queries_advance(const KvCacheProblem& p) {
  return p.window_left >= 0 || folded_window_right(p) >= 0;
}

/// Element type of a sink, where there is one.
[[nodiscard]] constexpr DType sink_dtype(const KvCacheProblem& p) {
  return p.sink == SinkKind::query ? p.dtype : DType::f32;
}

/// Element type of the rotary tables, where there are some.
[[nodiscard]] constexpr DType rotary_dtype(const KvCacheProblem& p) {
  return p.rotary == RotaryKind::query ? p.dtype : DType::f32;
}

/// Whether 8 pairs at a time fill 16 bytes, and more, of rotary tables and of the rows that turn.
[[nodiscard]] constexpr bool rotates_in_chunks(std::int64_t rotary_dim, std::int64_t rotary_offset) {
  return rotary_dim > 0 && rotary_dim % 16 == 0 && rotary_offset % 8 == 0;
}

/// What a problem's block mask is of: positions, of queries as of keys.
[[nodiscard]] inline BlockedScores blocked_scores(const KvCacheProblem& p) {
  const std::int64_t places = capacity_of(p);
  return {p.block_mask, p.batch_size, p.num_heads_q, places, places, "capacity", "capacity"};
}

/// append_kv appends, and has as many query heads as there are of the keys, whatever its problem says.
[[nodiscard]] inline KvCacheProblem completed(KvCacheProblem p) {
  if (appends_alone(p)) p.append = true, p.num_heads_q = p.num_heads_k;
  return p;
}

/// The one form of all problems that mean the same computation: a window ending on the diagonal is Mask::causal, and
/// f32's own dtype is just f32. Values that validate() rejects are left alone.
[[nodiscard]] inline KvCacheProblem canonical(KvCacheProblem p) {
  p = completed(p);
  if (p.mask == Mask::none && p.window_right == 0) p.mask = Mask::causal;
  if (p.mask == Mask::causal && p.window_right == 0) p.window_right = -1;
  if (p.sink == SinkKind::query && p.dtype == DType::f32) p.sink = SinkKind::f32;
  if (p.rotary == RotaryKind::query && p.dtype == DType::f32) p.rotary = RotaryKind::f32;
  if (p.device == DeviceType::cpu) p.unaligned = false;
  normalise_score_functions(p);
  normalise_selected_keys(p);
  normalise_block_mask(p);
  return p;
}

}  // namespace tilewise::operations::kv_cache
