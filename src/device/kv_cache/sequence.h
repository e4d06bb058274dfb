// One sequence of a KV cache call: its rows, and its places in the cache. Lengths and tables are clamped to what they
// may say, so that a bad one leads no kernel outside the tensors.
#pragma once

#include "device/common/mask.h"
#include "device/kv_cache/params.h"

namespace tilewise::device {

/// Places are 32-bit numbers, as a sequence has fewer than 2^31: a block that decodes a token waits for each
/// instruction on the way to its first key, and 64-bit comparisons take four.
struct CacheSequence {
  int64_t new_row, seqlen_new;  // first new key, in rows of the batch entry (packed: of the whole tensor)
  int32_t cached;               // places before the new keys, left padding included
  int32_t leftpad;              // of contiguous caches, as is cache_row
  int64_t cache_row;
  bool absent;  // without a cache: nothing is appended, its rows are 0
  bool lost;    // in a contiguous cache that is not there: nothing is appended either
};

/// Places that a sequence may have: none where there are no pages.
constexpr int32_t places_of(const AttentionShape& shape, const CacheShape& c) {
  return c.rows == 0 ? 0 : static_cast<int32_t>(shape.seqlen_k);
}
constexpr int32_t clamp_place(int32_t place, int32_t most) {
  const int32_t low = place < 0 ? 0 : place;
  return low < most ? low : most;
}

/// Whether a kernel's calls give cache_seqlens and no other length or table of sequences.
template <auto C>
constexpr bool has_seqlens_alone() {
  if constexpr (requires { C.seqlens_alone; }) {
    return C.seqlens_alone != 0;
  } else {
    return false;
  }
}

/// Where cache_seqlens[b] is all that is known of it.
constexpr CacheSequence cache_sequence_of(const AttentionShape& shape, const CacheShape& c, int64_t b,
                                          int32_t cache_seqlen) {
  const bool absent = cache_seqlen < 0, lost = !c.block_table && b >= c.rows;
  const int32_t cached = clamp_place(cache_seqlen, places_of(shape, c));
  return {0, c.seqlen_k_new, cached, 0, clamp_to(b, 0, c.rows - 1), absent, lost};
}

template <auto C>
constexpr CacheSequence cache_sequence_of(const AttentionShape& shape, const CacheShape& c, int64_t b) {
  if constexpr (has_seqlens_alone<C>()) return cache_sequence_of(shape, c, b, c.cache_seqlens[b]);
  CacheSequence s{0, c.seqlen_k_new, static_cast<int32_t>(c.cache_seqlen), 0, b, false, false};
  if (c.cu_seqlens_k_new) {
    s.new_row = clamp_to(c.cu_seqlens_k_new[b], 0, c.total_k_new);
    s.seqlen_new =
        clamp_to(c.cu_seqlens_k_new[b + 1] - s.new_row, 0, clamp_to(c.total_k_new - s.new_row, 0, c.seqlen_k_new));
  }
  if (c.cache_seqlens) s.cached = c.cache_seqlens[b];
  if (c.cache_batch_idx) s.cache_row = c.cache_batch_idx[b];
  s.absent = s.cached < 0 || s.cache_row < 0;
  s.lost = !c.block_table && s.cache_row >= c.rows;
  s.cached = clamp_place(s.cached, places_of(shape, c));
  s.cache_row = clamp_to(s.cache_row, 0, c.rows - 1);
  if (c.cache_leftpad) s.leftpad = clamp_place(c.cache_leftpad[b], static_cast<int32_t>(shape.seqlen_k));
  return s;
}

/// As the attention kernels see it: k_row is the first used place of the cache.
struct CachedSequence : Sequence {
  CacheSequence cache;
};

/// A sequence without a cache sees no key, so that its rows are 0 and their log-sum-exp -infinity. Where that takes
/// more, as there is a sink or a length of its queries, it uses no query: else queries wait for no length.
template <auto C>
constexpr bool uses_all_queries() {
  if constexpr (has_seqlens_alone<C>()) {
    return !C.sink;
  } else {
    return false;
  }
}

/// Every query of the batch entry, as where nothing says otherwise.
constexpr Sequence all_of_entry(const AttentionShape& shape) {
  return {0, 0, shape.seqlen_q, shape.seqlen_k, shape.seqlen_q, shape.seqlen_k, 0};
}

template <auto C>
constexpr CachedSequence attended_sequence(const AttentionShape& shape, const CacheShape& c, int64_t b,
                                           const CacheSequence& cache) {
  CachedSequence s{all_of_entry(shape), cache};
  if constexpr (!has_seqlens_alone<C>()) static_cast<Sequence&>(s) = sequence_of(shape, b);
  const int32_t places = places_of(shape, c);
  const auto most_new = static_cast<int32_t>(minimum<int64_t>(s.cache.seqlen_new, places));
  const int32_t end = s.cache.cached + minimum(most_new, places - s.cache.cached);
  s.k_row = clamp_place(s.cache.leftpad, end);
  s.seqlen_k = s.cache.absent ? 0 : end - s.k_row;
  if (!uses_all_queries<C>() && s.cache.absent) s.seqlen_q = 0;
  return s;
}

template <auto C>
constexpr CachedSequence attended_sequence(const AttentionShape& shape, const CacheShape& c, int64_t b) {
  return attended_sequence<C>(shape, c, b, cache_sequence_of<C>(shape, c, b));
}

}  // namespace tilewise::device
