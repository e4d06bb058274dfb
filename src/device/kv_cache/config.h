// What each kernel of the KV cache step is specialised on: see device/attention/config.h.
#pragma once

#include "device/attention/config.h"

namespace tilewise::device {

/// What a scale of fp8 elements belongs to: nothing, a block's whole stream, or each token.
enum ScaleKind : int32_t { kNoScales = 0, kBlockScale = 1, kTokenScales = 2 };

/// k_type and v_type are those of products; fp8 is widened to them.
struct KvCacheForwardConfig : ForwardConfig {
  int32_t cache_type = kBf16;        // ElementType
  int32_t page_size = 0;             // 0: contiguous
  int32_t scales = kNoScales;        // ScaleKind
  int32_t v_parts = 1;               // blocks that share the columns of v and out, head_dim_v for each
  Flag rotary = 0, interleaved = 0;  // of q
  Flag float_tables = 0;             // tables in fp32, else in q_type
  Flag vector_tables = 0;            // 8 pairs at a time lie on 16 bytes, in tables and in rows
  Flag appends = 0;                  // new keys, too: a block appends those of its sequence, head and part of the keys
  Flag seqlens_alone = 0;            // cache_seqlens are given, and nothing else about sequences
  Flag keeps_bytes = 0;       // fp8 tiles come to shared memory as they are and are widened there, else on their way
  Flag multiplies_bytes = 0;  // or they stay as they are there, and products widen what they read of them
  Flag direct_operands = 0;   // a lone wave loads keys and values straight to registers that it multiplies
  Flag schedules_keys = 0;    // of split keys: see key_scheduler.h

  template <class Config, class Visit>
  static constexpr void for_each_field(Config& c, const Visit& visit) {
    ForwardConfig::for_each_field(c, visit);
    visit("cache_type", c.cache_type), visit("page_size", c.page_size), visit("scales", c.scales);
    visit("v_parts", c.v_parts), visit("rotary", c.rotary), visit("interleaved", c.interleaved);
    visit("float_tables", c.float_tables), visit("vector_tables", c.vector_tables);
    visit("appends", c.appends), visit("seqlens_alone", c.seqlens_alone), visit("keeps_bytes", c.keeps_bytes);
    visit("multiplies_bytes", c.multiplies_bytes), visit("direct_operands", c.direct_operands);
    visit("schedules_keys", c.schedules_keys);
  }
};

/// Whether rows of so many bytes may be a ByteTile's: see SharedTile, which has two of them for an element.
constexpr bool fits_byte_tile(int32_t dim) { return dim == 32 || dim % 64 == 0; }

/// Whether tiles come as attention's do where no key is selected: elements of the tile's own type, in places that lie
/// in a row.
constexpr bool lies_in_rows(const KvCacheForwardConfig& c) {
  return c.page_size == 0 && c.cache_type != kE4m3 && !c.direct_operands && !c.selects;
}

/// Whether a block asks for its queries and a tile of keys before it asks how long its sequence is, which saves 0.6 us
/// at 16,384 keys. Its tiles lie num_splits apart, so that the first is the same one at any length. Pages are slower
/// so: a table names the first.
constexpr bool learns_length_late(const KvCacheForwardConfig& c) {
  return c.split && !c.schedules_keys && lies_in_rows(c) && c.seqlens_alone && !c.sink && !c.appends && !c.rotary &&
         !c.rows_in_registers;
}

/// Tiles whose places a stage holds: those of a tile are worked out while the one before it is on its way, and may
/// still be read once it has come, but where bytes come as they are.
constexpr int32_t places_a_stage(const KvCacheForwardConfig& c) { return c.stages == 1 && !c.keeps_bytes ? 2 : 1; }

/// A wave looks at a tile of keys beside the queries of a block's rows.
struct KvCacheMaskTilesConfig : RowConfig {
  using Functions = NoScoreFunctions;
  int32_t own = 64, streamed = 64;  // rows of a block, and keys
  Flag packs_heads = 0;             // rows are (query, head of the group) pairs

  template <class Config, class Visit>
  static constexpr void for_each_field(Config& c, const Visit& visit) {
    for_each_row_field(c, visit);
    visit("own", c.own), visit("streamed", c.streamed), visit("packs_heads", c.packs_heads);
  }
};

struct KvCacheCombineConfig : CombineConfig {
  Flag seqlens_alone = 0, schedules_keys = 0;  // as KvCacheForwardConfig
  int32_t block_n = 0;                         // likewise, where keys are scheduled, but where blocks take turns
  Flag takes_turns = 0;  // of scheduled keys, whose parts the step before has left: blocks take rows that have several

  template <class Config, class Visit>
  static constexpr void for_each_field(Config& c, const Visit& visit) {
    CombineConfig::for_each_field(c, visit);
    visit("seqlens_alone", c.seqlens_alone), visit("schedules_keys", c.schedules_keys), visit("block_n", c.block_n);
    visit("takes_turns", c.takes_turns);
  }
};

struct AppendKvConfig {
  int32_t type = kBf16, cache_type = kBf16;  // ElementType, of new keys and of the cache
  int32_t scales = kNoScales;                // ScaleKind
  Flag rotary = 0, interleaved = 0;
  Flag float_tables = 0;   // tables in fp32, else in `type`
  int32_t page_size = 0;   // 0: contiguous; not read where there are slots
  int32_t slot_bytes = 0;  // 0: no slots
  int32_t waves = 4;
  Flag seqlens_alone = 0;  // as KvCacheForwardConfig
  Flag vector_rows = 0;    // rows move 16 bytes at a time: see RowConfig; tables as KvCacheForwardConfig::vector_tables

  template <class Config, class Visit>
  static constexpr void for_each_field(Config& c, const Visit& visit) {
    visit("type", c.type), visit("cache_type", c.cache_type), visit("scales", c.scales), visit("rotary", c.rotary);
    visit("interleaved", c.interleaved), visit("float_tables", c.float_tables), visit("page_size", c.page_size);
    visit("slot_bytes", c.slot_bytes), visit("waves", c.waves), visit("seqlens_alone", c.seqlens_alone);
    visit("vector_rows", c.vector_rows);
  }
};

/// What a lane appends at once, of a key head's new key and its value (head_dim_v 0: none): two chunks of 8 elements
/// that turn into each other, or one chunk.
constexpr int64_t append_units(int64_t head_dim, int64_t head_dim_v, int64_t rotary_dim) {
  return (head_dim + head_dim_v) / 8 - rotary_dim / 16;
}

/// Whether new rows move 16 bytes at a time: where they and the tables, if any, lie so, and no token's scale needs its
/// whole row first.
constexpr bool appends_chunks(bool vector_rows, bool rotary, bool vector_tables, int32_t scales) {
  return vector_rows && (!rotary || vector_tables) && scales != kTokenScales;
}

/// How a forward kernel appends.
constexpr AppendKvConfig append_config(const KvCacheForwardConfig& c) {
  AppendKvConfig a;
  a.type = c.q_type;
  a.cache_type = c.cache_type;
  a.scales = c.scales;
  a.rotary = c.rotary;
  a.interleaved = c.interleaved;
  a.float_tables = c.float_tables;
  a.page_size = c.page_size;
  a.waves = c.waves;
  a.seqlens_alone = c.seqlens_alone;
  a.vector_rows = appends_chunks(c.vector_rows, c.rotary, c.vector_tables, c.scales);
  return a;
}

}  // namespace tilewise::device
