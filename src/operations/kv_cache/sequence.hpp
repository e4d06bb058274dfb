// One sequence of a KV cache call: its rows, its places in the cache, and what its queries see. One copy for every
// implementation on the CPU and for the checks of values.
#pragma once

#include <algorithm>
#include <cstdint>

#include "operations/kv_cache/params.hpp"

namespace tilewise::operations::kv_cache {

struct Sequence {
  std::int64_t q_row, seqlen_q;      // first row of q and out, in rows of the batch entry (packed: of the whole tensor)
  std::int64_t new_row, seqlen_new;  // likewise of the new keys
  std::int64_t cached;               // places before the new keys, left padding included
  std::int64_t leftpad;
  std::int64_t cache_row;  // contiguous caches
  bool absent;             // without a cache: nothing is appended, its rows are 0

  /// Keys that it attends to count from the left padding on.
  [[nodiscard]] std::int64_t seqlen_k() const { return cached + seqlen_new - leftpad; }
  /// Query i stands at key i + diagonal().
  [[nodiscard]] std::int64_t diagonal() const { return seqlen_k() - seqlen_q; }
};

[[nodiscard]] inline Sequence sequence_of(const KvCacheParams& p, std::int64_t b) {
  Sequence s{0, p.seqlen_q, 0, p.append ? p.seqlen_k_new : 0, p.cache_seqlen, 0, b, false};
  if (p.cu_seqlens_q != nullptr) {
    s.q_row = p.cu_seqlens_q[b];
    s.seqlen_q = std::int64_t{p.cu_seqlens_q[b + 1]} - s.q_row;
  }
  if (p.cu_seqlens_k_new != nullptr) {
    s.new_row = p.cu_seqlens_k_new[b];
    s.seqlen_new = std::int64_t{p.cu_seqlens_k_new[b + 1]} - s.new_row;
  }
  if (p.cache_seqlens != nullptr) s.cached = p.cache_seqlens[b];
  if (p.cache_batch_idx != nullptr) s.cache_row = p.cache_batch_idx[b];
  s.absent = s.cached < 0 || s.cache_row < 0;
  if (p.cache_leftpad != nullptr && !s.absent) s.leftpad = p.cache_leftpad[b];
  return s;
}

/// Keys [begin, end), counted from the left padding on.
struct KeyRange {
  std::int64_t begin, end;
};

[[nodiscard]] inline KeyRange visible_keys(const KvCacheParams& p, const Sequence& s, std::int64_t i) {
  const std::int64_t seqlen_k = s.seqlen_k(), at = i + s.diagonal();
  const std::int64_t begin = p.window_left < 0 ? 0 : std::clamp<std::int64_t>(at - p.window_left, 0, seqlen_k);
  const std::int64_t end =
      p.window_right < 0 ? seqlen_k : std::clamp<std::int64_t>(at + p.window_right + 1, 0, seqlen_k);
  return {begin, std::max(begin, end)};
}

/// What all queries of the sequence see together.
[[nodiscard]] inline KeyRange needed_keys(const KvCacheParams& p, const Sequence& s) {
  if (!p.attends || s.absent || s.seqlen_q <= 0 || s.seqlen_k() <= 0) return {0, 0};
  return {visible_keys(p, s, 0).begin, visible_keys(p, s, s.seqlen_q - 1).end};
}

/// Where a place of a sequence lies in the caches' first two dimensions.
struct CachePlace {
  std::int64_t row, place;
};

[[nodiscard]] inline CachePlace cache_place(const KvCacheParams& p, const Sequence& s, std::int64_t b,
                                            std::int64_t place) {
  if (!p.paged) return {s.cache_row, place};
  return {p.block_table[b * p.block_table_stride + place / p.row_places], place % p.row_places};
}

/// The slot of new token t of sequence b; -1: skipped.
[[nodiscard]] inline std::int64_t slot_of(const KvCacheParams& p, std::int64_t b, std::int64_t row) {
  const std::int64_t at = (p.packed ? 0 : b * p.slots_batch_stride) + row * p.slots_stride;
  return p.slots_i64 ? static_cast<const std::int64_t*>(p.slots)[at] : static_cast<const std::int32_t*>(p.slots)[at];
}

/// Where new token t of a sequence goes; row -1: nowhere.
[[nodiscard]] inline CachePlace new_place(const KvCacheParams& p, const Sequence& s, std::int64_t b, std::int64_t t) {
  if (p.slots == nullptr) return s.absent ? CachePlace{-1, 0} : cache_place(p, s, b, s.cached + t);
  const std::int64_t slot = slot_of(p, b, s.new_row + t);
  return slot < 0 ? CachePlace{-1, 0} : CachePlace{slot / p.row_places, slot % p.row_places};
}

/// The rotary position of the sequence's first new key.
[[nodiscard]] inline std::int64_t rotary_position(const KvCacheParams& p, const Sequence& s, std::int64_t b) {
  return p.rotary_seqlens != nullptr ? p.rotary_seqlens[b] : s.cached;
}

/// Whether query t stands at a rotary position of its own.
[[nodiscard]] inline bool queries_advance(const KvCacheParams& p) { return p.window_left >= 0 || p.window_right >= 0; }

}  // namespace tilewise::operations::kv_cache
