// The parameters of the Hopper kernels, as device/attention/params.h has them for the portable ones.
#pragma once

#include "device/attention/params.h"
#include "device/common/params.h"
#include "device/kv_cache/params.h"
#include "device/sm90/tensor_map.h"
#include "device/sm90/tile_counter.h"

namespace tilewise::device {

/// The order in which tiles of queries are scheduled: heads in sets of `heads_at_once`, a set's last tiles first, since
/// under a causal mask they see the most keys; the first `short_tiles` tiles of the heads from `first_late_head` on
/// come at the very end. Heads are counted over the batch. Backwards tiles are of keys, and in an order both ways the
/// last `rising_heads` heads are one set, whose first tiles come first.
struct TileOrder {
  int32_t num_tiles;  // of a (batch, head); forwards those of a cluster's blocks count as one
  int32_t num_heads;  // of the grid: key heads where heads are packed
  int32_t batch_size;
  int32_t heads_at_once, short_tiles;
  int32_t first_late_head;        // forwards
  int32_t rising_heads;           // backwards
  int32_t batch_inside;           // forwards: a head's batch entries come one after the other, else an entry's heads
  int32_t queries_per_warpgroup;  // 64, or 64 / heads of a group where heads are packed
  int32_t counters;               // words of the counter that schedules tiles: kCounterWords, backwards 1; else 0
  int32_t num_splits;             // parts in which a tile's keys, or queries, are scheduled

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("num_tiles", p.num_tiles), visit("num_heads", p.num_heads), visit("batch_size", p.batch_size);
    visit("heads_at_once", p.heads_at_once), visit("short_tiles", p.short_tiles);
    visit("first_late_head", p.first_late_head), visit("rising_heads", p.rising_heads);
    visit("batch_inside", p.batch_inside);
    visit("queries_per_warpgroup", p.queries_per_warpgroup), visit("counters", p.counters);
    visit("num_splits", p.num_splits);
  }
};

/// By what the numbers of tiles in that order are divided, and which set is the last one.
struct OrderDivisors {
  Divisor by_set, by_last_set;  // by the heads of a set, and of the last one
  Divisor by_set_tiles;         // by the long tiles of a set
  Divisor by_heads, by_all_heads;
  Divisor by_splits;
  Divisor by_tiles;  // of one share of a key head's query heads, all of which order.num_tiles has
  int32_t last_set;

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("by_set", p.by_set), visit("by_last_set", p.by_last_set), visit("by_set_tiles", p.by_set_tiles);
    visit("by_heads", p.by_heads), visit("by_all_heads", p.by_all_heads), visit("by_splits", p.by_splits);
    visit("by_tiles", p.by_tiles), visit("last_set", p.last_set);
  }
};
constexpr OrderDivisors order_divisors(const TileOrder& order, int32_t shares = 1) {
  const int32_t heads = order.num_heads * order.batch_size, a_set = order.heads_at_once;
  if (heads == 0 || a_set == 0) return {};
  const int32_t last_set = (order.rising_heads > 0 ? heads - order.rising_heads : heads - 1) / a_set;
  return {divisor_of(a_set),
          divisor_of(heads - last_set * a_set),
          divisor_of(a_set * (order.num_tiles - order.short_tiles)),
          divisor_of(order.num_heads),
          divisor_of(heads),
          divisor_of(order.num_splits),
          divisor_of(order.num_tiles / shares),
          last_set};
}

/// Which dimensions a bias has (1, else 0), whose boxes are asked for at its place in those alone.
struct BiasPlaces {
  int32_t batch, head, query;

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("batch", p.batch), visit("head", p.head), visit("query", p.query);
  }
};

/// Which heads' rows begin between two sectors, 16 bytes behind one: those of head h where base + head * h is odd.
struct OddStarts {
  int32_t base, head;

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("base", p.base), visit("head", p.head);
  }
};
/// Whether a head's first piece lies behind its others in shared memory, so that the boxes of those begin with a
/// sector: of a row of 144 bytes a box of 128 then takes four sectors instead of five.
constexpr bool is_turned(const OddStarts& starts, int32_t head) {
  return ((starts.base ^ (starts.head & head)) & 1) != 0;
}

struct HopperMaskTilesParams {
  AttentionShape shape;
  TileGrid grid;     // of tiles of own rows, and of runs of streamed ones
  CacheShape cache;  // of a config that is cached
  // Of each of the grid's heads, which stands for as many as its group has, one after the other.
  TileClasses<uint8_t> classes;

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("shape", p.shape), visit("grid", p.grid), visit("cache", p.cache), visit("classes", p.classes);
  }
};

/// What tile_lists makes of what mask_tiles has found.
struct HopperTileListsParams {
  TileClasses<const uint8_t> classes;
  TileClasses<uint8_t> lists;  // as TileLists has them; of as many rows
  int32_t num_rows;            // of all entries
  int32_t unused;              // keeps the block free of holes

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("classes", p.classes), visit("lists", p.lists), visit("num_rows", p.num_rows), visit("unused", p.unused);
  }
};

struct HopperForwardParams {
  // q and out: [dim, head of the group, seq, group, batch] with boxes [64, group, queries_per_warpgroup, 1, 1]; the
  // group is 1 where heads are not packed. k and v: [dim, seq, head, batch] with boxes [64, keys_of_box(), 1, 1]; of a
  // cache that is [dim, place, head, page or row]. Swizzle 128 bytes. Of elements of one byte a box has 128. A bias in
  // boxes is [key, head of the group, query, group, batch], as q is, with boxes of 128 bytes of keys, and of one row
  // where it has no queries or heads.
  TensorMap q_map, k_map, v_map, out_map, bias_map;
  TensorMap q_first_map, k_first_map, v_first_map, out_first_map;  // of the first kPieceColumns, with turned_columns
  AttentionShape shape;
  ScoreParams score;
  Tensor4 out;
  LseTensor softmax_lse;
  SinkTensor sink;
  HeadScales q_scale, k_scale, v_scale;  // fp8 only
  CacheShape cache;                      // of a config that is cached; AttentionShape::seqlen_k is its capacity
  OddStarts k_starts, v_starts;          // of a config with turned_columns
  TileOrder order;
  BiasPlaces bias_places;
  uint32_t* tile_counter;  // [counters]: see tile_counter.h
  // As the portable ForwardParams have them.
  float* out_accum;
  float* lse_accum;

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("q_map", p.q_map), visit("k_map", p.k_map), visit("v_map", p.v_map), visit("out_map", p.out_map);
    visit("bias_map", p.bias_map), visit("q_first_map", p.q_first_map), visit("k_first_map", p.k_first_map);
    visit("v_first_map", p.v_first_map), visit("out_first_map", p.out_first_map);
    visit("shape", p.shape), visit("score", p.score), visit("out", p.out), visit("softmax_lse", p.softmax_lse);
    visit("sink", p.sink), visit("q_scale", p.q_scale), visit("k_scale", p.k_scale), visit("v_scale", p.v_scale);
    visit("k_starts", p.k_starts), visit("v_starts", p.v_starts);
    visit("cache", p.cache), visit("order", p.order), visit("bias_places", p.bias_places);
    visit("tile_counter", p.tile_counter), visit("out_accum", p.out_accum), visit("lse_accum", p.lse_accum);
  }
};

/// Where the statistics of query `row` lie among a head's. A lane of a consumer warpgroup holds columns 8c + 2l and
/// 8c + 2l + 1 of a product: the four that it has of 16 queries lie side by side.
constexpr int64_t statistic_place(int64_t row) {
  return (row & ~int64_t{15}) | (row & 6) << 1 | (row & 8) >> 2 | (row & 1);
}

/// What it begins with: of each query its log-sum-exp, as a rule in units of log2, and delta = rowsum(out * dout) -
/// dlse, both permuted (see statistic_place()) and padded to whole tiles, and zeros in dq_accum.
struct HopperBwdPreprocessParams {
  TensorMap out_map, dout_map;
  AttentionShape shape;
  Tensor4 dq;  // null but where those of queries that see nothing are cleared
  LseTensor softmax_lse, dlse;
  TileGrid grid;    // of tiles of queries, head after head
  float* lse2;      // [batch_size, num_heads_q, rows_a_head]; natural where the config says so
  float* delta;     // [batch_size, num_heads_q, rows_a_head]
  float* dq_accum;  // [batch_size, num_heads_q, rows_a_head, head_dim padded]; null where first sums are stored
  // [batch_size, num_heads_q, dense_rows_a_head], delta of query after query; null where no kernel reads it
  float* dense_delta;
  // Zeros from here on: [all_turns], of dq's order or counts; [counters]; [gradient_turns], of groups whose dk and dv
  // are added up. Null where there are none.
  uint32_t* turns;
  uint32_t* tile_counter;
  uint32_t* dkdv_turns;
  uint32_t* tiles_done;  // [tiles], 1 for each tile that is made; null where nobody asks before this launch has ended
  int64_t rows_a_head, dq_accum_a_head, dense_rows_a_head, all_turns, counters, gradient_turns;
  int32_t tiles, first_tiles;  // in all, and by all blocks; the rest by the first late_blocks
  int32_t late_blocks;

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("out_map", p.out_map), visit("dout_map", p.dout_map), visit("shape", p.shape), visit("dq", p.dq);
    visit("softmax_lse", p.softmax_lse), visit("dlse", p.dlse), visit("grid", p.grid), visit("lse2", p.lse2);
    visit("delta", p.delta), visit("dq_accum", p.dq_accum), visit("dense_delta", p.dense_delta);
    visit("turns", p.turns), visit("tile_counter", p.tile_counter), visit("dkdv_turns", p.dkdv_turns);
    visit("tiles_done", p.tiles_done), visit("rows_a_head", p.rows_a_head);
    visit("dq_accum_a_head", p.dq_accum_a_head), visit("dense_rows_a_head", p.dense_rows_a_head);
    visit("all_turns", p.all_turns), visit("counters", p.counters), visit("gradient_turns", p.gradient_turns);
    visit("tiles", p.tiles), visit("first_tiles", p.first_tiles);
    visit("late_blocks", p.late_blocks);
  }
};

inline constexpr int32_t kGradientWarps = 8;  // that hold dk or dv of a tile of keys

struct HopperBwdParams {
  // q, dout, dk, dv and dq: [dim, 1, seq, head, batch], boxes of q and dout [64, 1, block_m, 1, 1], of dk and dv
  // [64, 1, 64, 1, 1], of dq [64, 1, 16, 1, 1]. k and v: [dim, seq, head, batch] with boxes [64, block_n, 1, 1].
  // Swizzle 128 bytes.
  // A bias in boxes is [key, 1, query, head, batch], with boxes of 128 bytes of keys and block_m rows, or one where it
  // has no queries.
  TensorMap q_map, k_map, v_map, dout_map, dk_map, dv_map, bias_map, dq_map;
  AttentionShape shape;
  ScoreParams score;
  Tensor4 dk, dv;   // null where they are not wanted
  Tensor4 dq;       // null where another kernel rounds all of dq
  TileOrder order;  // of tiles of keys, backwards; heads are key heads, each with its tiles once for each share
  BiasPlaces bias_places;
  int32_t group;          // query heads of a tile of keys
  int32_t shares, tiles;  // in which a key head's query heads come, each with tiles of keys of its own; tiles of each
  OrderDivisors divisors;
  const float* lse2;  // as HopperBwdPreprocessParams has them
  const float* delta;
  float* dq_accum;  // dq before its scale, in the order of accumulators: see dq_accum.h
  uint32_t* turns;  // [batch_size, num_heads_q, turns_a_head]: see bwd_turns.h
  // As the portable BwdParams have them; written instead of dk and dv where queries come in parts, and by all shares of
  // query heads but the last.
  float* dk_accum;
  float* dv_accum;
  uint32_t* dkdv_turns;  // [batch_size, num_heads_k, tiles, kGradientWarps], 0 at first: see bwd_group.h
  // [order.counters], 0 at first: how many tiles of keys, and of queries to be rounded, have been asked for
  uint32_t* tile_counter;
  // [batch_size, num_heads_q, preprocess_tiles], as above; null where all have been made before
  const uint32_t* preprocess_done;
  int64_t rows_a_head, dq_accum_a_head, turns_a_head, dk_accum_a_block, dv_accum_a_block;
  int32_t preprocess_tiles;
  int32_t unused[13];  // keep blocks with tables behind this one free of holes

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("q_map", p.q_map), visit("k_map", p.k_map), visit("v_map", p.v_map), visit("dout_map", p.dout_map);
    visit("preprocess_done", p.preprocess_done), visit("preprocess_tiles", p.preprocess_tiles);
    visit("dk_map", p.dk_map), visit("dv_map", p.dv_map), visit("bias_map", p.bias_map);
    visit("dq_map", p.dq_map);
    visit("shape", p.shape), visit("score", p.score), visit("dk", p.dk), visit("dv", p.dv), visit("dq", p.dq);
    visit("order", p.order), visit("bias_places", p.bias_places), visit("group", p.group);
    visit("shares", p.shares), visit("tiles", p.tiles), visit("divisors", p.divisors);
    visit("lse2", p.lse2), visit("delta", p.delta), visit("dq_accum", p.dq_accum), visit("turns", p.turns);
    visit("dk_accum", p.dk_accum), visit("dv_accum", p.dv_accum), visit("dkdv_turns", p.dkdv_turns);
    visit("tile_counter", p.tile_counter), visit("rows_a_head", p.rows_a_head);
    visit("dq_accum_a_head", p.dq_accum_a_head), visit("turns_a_head", p.turns_a_head);
    visit("dk_accum_a_block", p.dk_accum_a_block), visit("dv_accum_a_block", p.dv_accum_a_block);
    visit("unused", p.unused);
  }
};

struct HopperBwdConvertDqParams {
  AttentionShape shape;
  Tensor4 dq;
  TileGrid grid;
  const float* lse2;      // as HopperBwdPreprocessParams has them
  const float* dq_accum;  // dq before its scale, in the order of accumulators
  int64_t rows_a_head, dq_accum_a_head;
  float softmax_scale;
  int32_t unused;  // keeps the block free of holes

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("shape", p.shape), visit("dq", p.dq), visit("grid", p.grid), visit("lse2", p.lse2);
    visit("dq_accum", p.dq_accum), visit("rows_a_head", p.rows_a_head);
    visit("dq_accum_a_head", p.dq_accum_a_head), visit("softmax_scale", p.softmax_scale), visit("unused", p.unused);
  }
};

/// How (query, head) pairs and parts of the keys are distributed over blocks: row tiles of a part run fastest, so that
/// blocks that read the same keys run at the same time.
struct LatentOrder {
  int32_t queries_of_tile, heads_of_tile;  // rows of a tile: heads run fastest
  int32_t head_tiles, row_tiles;           // of a query; of a sequence
  int32_t num_splits;                      // parts of each sequence's keys; 1 where they are scheduled by lengths
  int32_t unused;                          // keeps the block free of holes

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("queries_of_tile", p.queries_of_tile), visit("heads_of_tile", p.heads_of_tile);
    visit("head_tiles", p.head_tiles), visit("row_tiles", p.row_tiles), visit("num_splits", p.num_splits);
    visit("unused", p.unused);
  }
};

struct HopperLatentParams {
  // q: [dim, head, seq, batch] with boxes [64, heads_of_tile, queries_of_tile, 1]; k: [dim, place, head, page or row
  // of the cache] with boxes [64, keys_of_box(), 1, 1]. Swizzle 128 bytes.
  TensorMap q_map, k_map;
  AttentionShape shape;
  ScoreParams score;
  Tensor4 out;
  LseTensor softmax_lse;
  CacheShape cache;
  LatentOrder order;
  Tensor4 k;  // of the cache, one head
  IndexTensor key_indices;
  float* out_accum;  // as KvCacheForwardParams have them
  float* lse_accum;
  KeySchedule key_schedule;

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("q_map", p.q_map), visit("k_map", p.k_map), visit("shape", p.shape), visit("score", p.score);
    visit("out", p.out), visit("softmax_lse", p.softmax_lse), visit("cache", p.cache), visit("order", p.order);
    visit("k", p.k), visit("key_indices", p.key_indices), visit("out_accum", p.out_accum),
        visit("lse_accum", p.lse_accum);
    visit("key_schedule", p.key_schedule);
  }
};

}  // namespace tilewise::device
