// The parameters of each kernel of the KV cache step: plain data, shape beside every pointer. The host's table of their
// pointers stands in backends/portable/kv_cache/parameters.hpp.
#pragma once

#include "device/attention/params.h"

namespace tilewise::device {

/// What the cache holds, and where. AttentionShape::seqlen_k is a sequence's capacity.
struct CacheShape {
  int64_t rows, places;               // pages and page_size; contiguous: sequences of the cache and capacity
  int64_t seqlen_k_new, total_k_new;  // new keys; packed: the maximum, and all
  int64_t cache_seqlen;               // of every sequence, where cache_seqlens is null
  int64_t max_pages_per_seq, block_table_stride;
  int64_t element_bytes;

  // Lengths; null where not given. cu_seqlens_k_new has batch_size + 1 entries, the others batch_size.
  const int32_t *cu_seqlens_k_new, *cache_seqlens, *cache_batch_idx, *cache_leftpad;
  const int32_t* block_table;  // [batch_size, max_pages_per_seq]; null: contiguous

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("rows", p.rows), visit("places", p.places), visit("seqlen_k_new", p.seqlen_k_new);
    visit("total_k_new", p.total_k_new), visit("cache_seqlen", p.cache_seqlen);
    visit("max_pages_per_seq", p.max_pages_per_seq), visit("block_table_stride", p.block_table_stride);
    visit("element_bytes", p.element_bytes), visit("cu_seqlens_k_new", p.cu_seqlens_k_new);
    visit("cache_seqlens", p.cache_seqlens), visit("cache_batch_idx", p.cache_batch_idx);
    visit("cache_leftpad", p.cache_leftpad), visit("block_table", p.block_table);
  }
};

/// Scales of fp8 elements; a dimension that they do not have has stride 0. data null: one number, `value`.
struct ScaleTensor {
  float* data;
  int64_t batch_stride, row_stride, place_stride, head_stride;  // row and place: of the cache
  float value;
  int32_t unused;  // keeps the block free of holes

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("data", p.data), visit("batch_stride", p.batch_stride), visit("row_stride", p.row_stride);
    visit("place_stride", p.place_stride), visit("head_stride", p.head_stride), visit("value", p.value);
    visit("unused", p.unused);
  }
};

/// cos and sin of [position, i], i below dim / 2.
struct RotaryTables {
  const void *cos, *sin;
  int64_t cos_stride, sin_stride;  // between positions
  int64_t rows, dim, offset;       // dim 0: none
  int64_t element_bytes;
  const int32_t* seqlens;   // [batch_size]: the first new key's position; null: what the cache holds
  int64_t queries_advance;  // whether query t stands at a position of its own

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("cos", p.cos), visit("sin", p.sin), visit("cos_stride", p.cos_stride), visit("sin_stride", p.sin_stride);
    visit("rows", p.rows), visit("dim", p.dim), visit("offset", p.offset), visit("element_bytes", p.element_bytes);
    visit("seqlens", p.seqlens), visit("queries_advance", p.queries_advance);
  }
};

/// What a step appends.
struct NewKeys {
  Tensor4 k, v;
  int64_t packed;          // rows of all sequences stand in one tensor
  int64_t appends_values;  // 0: values are columns of the keys

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("k", p.k), visit("v", p.v), visit("packed", p.packed), visit("appends_values", p.appends_values);
  }
};

struct KvCacheMaskTilesParams {
  AttentionShape shape;
  TileGrid grid;
  CacheShape cache;
  TileClasses<uint8_t> classes;

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("shape", p.shape), visit("grid", p.grid), visit("cache", p.cache), visit("classes", p.classes);
  }
};

/// Sequences whose keys are scheduled, at most.
inline constexpr int32_t kMostScheduledSequences = 512;

/// How parts of the keys are scheduled where sequences differ in their number: see key_scheduler.h.
struct KeySchedule {
  int64_t* parts;      // [batch_size], as pack() has them, from the forward kernel to combine; null: not left
  int32_t places;      // parts of all sequences at most; 0: as many for each
  int32_t most_tiles;  // that a sequence's queries see
  // The share of all tiles that a part should have; where sequences are about as long. Where keys are scheduled
  // sparingly, the second is what a sequence may have and stay whole, and so many parts begin at once.
  float of_parts, of_even_parts;
  float fewest_tiles;  // of a part
  int32_t sparing;     // whether schedules_sparingly() holds

  /// Each of combine's blocks computes the schedule of few sequences while it waits. That of many takes longer than to
  /// read what the forward kernel has left.
  [[nodiscard]] constexpr bool leaves_parts(int64_t batch_size) const {
    return places > 0 && (sparing != 0 || batch_size > 32);
  }
  /// A sequence's parts among those of all sequences.
  static constexpr int64_t pack(int32_t first, int32_t count) { return int64_t{first} << 32 | count; }
  static constexpr int32_t first_of(int64_t parts) { return static_cast<int32_t>(parts >> 32); }
  static constexpr int32_t count_of(int64_t parts) { return static_cast<int32_t>(parts); }

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("parts", p.parts), visit("places", p.places), visit("most_tiles", p.most_tiles);
    visit("of_parts", p.of_parts), visit("of_even_parts", p.of_even_parts);
    visit("fewest_tiles", p.fewest_tiles), visit("sparing", p.sparing);
  }
};

/// Where a sequence's keys lie, and its parts of them: what a block asks for before it can ask for anything else.
struct CachedKeys {
  CacheShape cache;
  KeySchedule key_schedule;

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("cache", p.cache), visit("key_schedule", p.key_schedule);
  }
};

/// Attention's, over a cache: k and v are [row or page, place, head, dim]. Where there is a key schedule, out_accum is
/// [key_schedule.places, num_heads_q, seqlen_q, head_dim_v], and lse_accum likewise.
struct KvCacheForwardParams : CachedKeys, ForwardParams {
  ScaleTensor k_scale, v_scale;
  NewKeys new_keys;     // where it appends them
  RotaryTables rotary;  // of q, and of new keys
  int64_t appends;      // whether the kernel appends, and no step before it

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    CachedKeys::for_each_field(p, visit), ForwardParams::for_each_field(p, visit);
    visit("k_scale", p.k_scale), visit("v_scale", p.v_scale), visit("new_keys", p.new_keys);
    visit("rotary", p.rotary), visit("appends", p.appends);
  }
};

/// Attention's. Where blocks take turns, the grid has as many tiles as there are blocks. num_splits is read where all
/// sequences have as many.
struct KvCacheCombineParams : CombineParams, CachedKeys {
  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    CombineParams::for_each_field(p, visit), CachedKeys::for_each_field(p, visit);
  }
};

/// Rotates and appends new keys, and appends values.
struct AppendKvParams {
  AttentionShape shape;
  CacheShape cache;
  NewKeys new_keys;
  Tensor4 k, v;  // of the cache
  ScaleTensor k_scale, v_scale;
  RotaryTables rotary;
  const void* slots;  // null: cache_seqlens say where keys go; [total_k_new], or [batch_size, seqlen_k_new]
  int64_t slot_bytes, slots_batch_stride, slots_stride;

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("shape", p.shape), visit("cache", p.cache), visit("new_keys", p.new_keys);
    visit("k", p.k), visit("v", p.v), visit("k_scale", p.k_scale);
    visit("v_scale", p.v_scale), visit("rotary", p.rotary), visit("slots", p.slots);
    visit("slot_bytes", p.slot_bytes), visit("slots_batch_stride", p.slots_batch_stride);
    visit("slots_stride", p.slots_stride);
  }
};

/// Rotates queries into the workspace.
struct RotateQueriesParams {
  AttentionShape shape;
  CacheShape cache;
  Tensor4 q, rotated;  // of packed queries batch_stride is 0
  RotaryTables rotary;
  int64_t rows, packed;  // queries of all sequences

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("shape", p.shape), visit("cache", p.cache), visit("q", p.q), visit("rotated", p.rotated);
    visit("rotary", p.rotary), visit("rows", p.rows), visit("packed", p.packed);
  }
};

}  // namespace tilewise::device
