// The parameters of each attention kernel: plain data, shape beside every pointer. What a kernel does not read is not
// in its struct. The host's table of their pointers stands in backends/portable/attention/parameters.hpp.
#pragma once

#include "device/common/divisor.h"
#include "device/common/params.h"

namespace tilewise::device {

/// How a grid of blocks is cut: tiles of rows run fastest, then splits, then heads, then batch entries.
struct TileGrid {
  int32_t num_tiles;   // row tiles of a (batch, head)
  int32_t num_splits;  // parts of the streamed side
  int32_t num_heads;   // heads the grid runs over
  int32_t group;       // query heads of a key head
  Divisor by_tiles, by_splits, by_heads, by_group;

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("num_tiles", p.num_tiles), visit("num_splits", p.num_splits), visit("num_heads", p.num_heads);
    visit("group", p.group), visit("by_tiles", p.by_tiles), visit("by_splits", p.by_splits);
    visit("by_heads", p.by_heads), visit("by_group", p.by_group);
  }
};

constexpr TileGrid tile_grid(int64_t tiles, int64_t splits, int64_t heads, int64_t group) {
  const auto t = static_cast<int32_t>(tiles), s = static_cast<int32_t>(splits), h = static_cast<int32_t>(heads),
             g = static_cast<int32_t>(group);
  return {t, s, h, g, divisor_of(t), divisor_of(s), divisor_of(h), divisor_of(g)};
}

/// Floats that a part of the keys leaves of a row's log-sum-exp: see RowLse.
inline constexpr int64_t kLseNumbers = 2;

/// What a block asks for first stands first, near each other.
struct ForwardParams {
  AttentionShape shape;
  TileGrid grid;
  Tensor4 q, k, v;
  // Written instead of out and softmax_lse where keys are split; each part's out is divided by its own sum.
  float* out_accum;  // [num_splits, batch_size, num_heads_q, seqlen_q, head_dim_v]
  float* lse_accum;  // [num_splits, batch_size, num_heads_q, seqlen_q, 2]: see RowLse
  ScoreParams score;
  Tensor4 out;
  LseTensor softmax_lse;
  SinkTensor sink;
  IndexTensor key_indices;

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("shape", p.shape), visit("grid", p.grid), visit("q", p.q), visit("k", p.k), visit("v", p.v);
    visit("out_accum", p.out_accum), visit("lse_accum", p.lse_accum), visit("score", p.score), visit("out", p.out);
    visit("softmax_lse", p.softmax_lse), visit("sink", p.sink), visit("key_indices", p.key_indices);
  }
};

/// Captured tensors that a call's functions of scores may look up.
inline constexpr int kMostTables = 8;

/// One of them, as kernels see it; data null: there is none of this number.
struct ScoreTable {
  const void* data;
  int64_t strides[4];  // in elements; 0 of dimensions that it has not
  int32_t sizes[4];    // 1 of those
  int32_t element_bytes;
  int32_t of_blocks;  // 1: states of a block mask's blocks, in the workspace

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("data", p.data), visit("strides", p.strides), visit("sizes", p.sizes);
    visit("element_bytes", p.element_bytes), visit("of_blocks", p.of_blocks);
  }
};

/// What mask_mod leaves of a tile of queries and keys.
enum TileClass : uint8_t { kTileHidden = 0, kTileMixed = 1, kTileSeen = 2 };

/// What rows of TileClasses are of, and what they hold.
enum TileRows : int32_t {
  kQueryTiles = 0,      // own rows are queries, and each streamed tile has a class
  kKeyTiles = 1,        // own rows are keys, likewise
  kListedKeyTiles = 2,  // own rows are queries; what Hopper's tile_lists makes of their classes
  kQueryTileRanges = 3  // own rows are keys, likewise
};

/// The class of each tile, of the first part of its own rows in the lowest two bits, of the next one in those above;
/// data null: none is known.
template <class Byte>
struct TileClasses {
  Byte* data;            // [entries of the batch, or 1; tiles of own rows, bytes of a row]
  int64_t batch_stride;  // 0 where mask_mod is the same for all entries
  int64_t bytes;         // of all
  int32_t streamed;      // bytes of a row: as many as it meets tiles
  int32_t rows;          // TileRows

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("data", p.data), visit("batch_stride", p.batch_stride), visit("bytes", p.bytes);
    visit("streamed", p.streamed), visit("rows", p.rows);
  }
};

/// Of a kernel whose scores functions of the problem's change: its own parameters, what mask_tiles has found, and the
/// tensors that functions look up.
template <class Params>
struct WithTables : Params {
  TileClasses<const uint8_t> tile_classes;
  ScoreTable tables[kMostTables];

  template <class Self, class Visit>
  static constexpr void for_each_field(Self& p, const Visit& visit) {
    Params::for_each_field(p, visit);
    visit("tile_classes", p.tile_classes), visit("tables", p.tables);
  }
};

/// Lists of a block mask, of blocks that get one state.
struct BlockStatesParams {
  const int32_t* counts;   // [batch, heads, rows]
  const int32_t* indices;  // [batch, heads, rows, columns]
  int64_t count_strides[3], index_strides[4];
  uint8_t* states;  // [batch, heads, rows, columns], which another launch has cleared
  int32_t batch, heads, rows, columns;
  int32_t state;
  int32_t tensor;  // the first of the call's tensors, for the host

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("counts", p.counts), visit("indices", p.indices), visit("count_strides", p.count_strides);
    visit("index_strides", p.index_strides), visit("states", p.states), visit("batch", p.batch);
    visit("heads", p.heads), visit("rows", p.rows), visit("columns", p.columns), visit("state", p.state);
    visit("tensor", p.tensor);
  }
};

struct MaskTilesParams {
  AttentionShape shape;
  TileGrid grid;
  TileClasses<uint8_t> classes;

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("shape", p.shape), visit("grid", p.grid), visit("classes", p.classes);
  }
};

/// Merges the parts that split keys leave.
struct CombineParams {
  AttentionShape shape;
  TileGrid grid;           // without splits of its own
  int64_t num_splits;      // of the keys
  const float* out_accum;  // as ForwardParams has them
  const float* lse_accum;
  Tensor4 out;
  LseTensor softmax_lse;
  SinkTensor sink;

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("shape", p.shape), visit("grid", p.grid), visit("num_splits", p.num_splits);
    visit("out_accum", p.out_accum), visit("lse_accum", p.lse_accum), visit("out", p.out);
    visit("softmax_lse", p.softmax_lse), visit("sink", p.sink);
  }
};

/// delta = rowsum(out * dout) - dlse; and zeros in dq_accum.
struct BwdPreprocessParams {
  AttentionShape shape;
  Tensor4 out, dout;
  LseTensor dlse;
  TileGrid grid;
  float* delta;     // [batch_size, num_heads_q, seqlen_q]
  float* dq_accum;  // [batch_size, num_heads_q, dq_accum_a_head]; null: nothing to clear
  int64_t dq_accum_a_head;

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("shape", p.shape), visit("out", p.out), visit("dout", p.dout), visit("dlse", p.dlse);
    visit("grid", p.grid), visit("delta", p.delta), visit("dq_accum", p.dq_accum);
    visit("dq_accum_a_head", p.dq_accum_a_head);
  }
};

struct BwdDqParams {
  AttentionShape shape;
  ScoreParams score;
  Tensor4 q, k, v, dout, dq;
  LseTensor softmax_lse;
  TileGrid grid;
  const float* delta;  // [batch_size, num_heads_q, seqlen_q]
  IndexTensor key_indices;

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("shape", p.shape), visit("score", p.score), visit("q", p.q), visit("k", p.k), visit("v", p.v);
    visit("dout", p.dout), visit("dq", p.dq), visit("softmax_lse", p.softmax_lse), visit("grid", p.grid);
    visit("delta", p.delta), visit("key_indices", p.key_indices);
  }
};

struct BwdDkdvParams {
  AttentionShape shape;
  ScoreParams score;
  Tensor4 q, k, v, dout, dk, dv;
  LseTensor softmax_lse;
  TileGrid grid;
  const float* delta;  // [batch_size, num_heads_q, seqlen_q]
  // Where keys are selected: dk before its scale and dv, added to instead of written; see selected_sums.h.
  IndexTensor key_indices;
  float* dk_accum;  // [accum_rows, num_heads_k, dk_accum_a_row]: a row for each of k, of all sequences
  float* dv_accum;
  int64_t dk_accum_a_row, dv_accum_a_row, accum_rows;
  int64_t accum_rows_a_batch;  // 0 of packed sequences, which count their rows over all

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("shape", p.shape), visit("score", p.score), visit("q", p.q), visit("k", p.k), visit("v", p.v);
    visit("dout", p.dout), visit("dk", p.dk), visit("dv", p.dv), visit("softmax_lse", p.softmax_lse);
    visit("grid", p.grid), visit("delta", p.delta), visit("key_indices", p.key_indices);
    visit("dk_accum", p.dk_accum), visit("dv_accum", p.dv_accum), visit("dk_accum_a_row", p.dk_accum_a_row);
    visit("dv_accum_a_row", p.dv_accum_a_row), visit("accum_rows", p.accum_rows);
    visit("accum_rows_a_batch", p.accum_rows_a_batch);
  }
};

/// dk, dv and dq in one pass.
struct BwdParams {
  AttentionShape shape;
  ScoreParams score;
  Tensor4 q, k, v, dout, dk, dv;
  LseTensor softmax_lse;
  TileGrid grid;
  const float* delta;  // [batch_size, num_heads_q, seqlen_q]
  float* dq_accum;     // [batch_size, num_heads_q, dq_accum_a_head], dq before its scale; see dq_accum.h
  int64_t dq_accum_a_head;
  // Written instead of dk and dv where queries are split; see dkdv_accum.h.
  float* dk_accum;  // [batch_size, num_heads_k, num_tiles, num_splits, dk_accum_a_block]
  float* dv_accum;  // [batch_size, num_heads_k, num_tiles, num_splits, dv_accum_a_block]
  int64_t dk_accum_a_block, dv_accum_a_block;

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("shape", p.shape), visit("score", p.score), visit("q", p.q), visit("k", p.k), visit("v", p.v);
    visit("dout", p.dout), visit("dk", p.dk), visit("dv", p.dv), visit("softmax_lse", p.softmax_lse);
    visit("grid", p.grid), visit("delta", p.delta), visit("dq_accum", p.dq_accum);
    visit("dq_accum_a_head", p.dq_accum_a_head), visit("dk_accum", p.dk_accum), visit("dv_accum", p.dv_accum);
    visit("dk_accum_a_block", p.dk_accum_a_block), visit("dv_accum_a_block", p.dv_accum_a_block);
  }
};

struct BwdConvertDqParams {
  AttentionShape shape;
  Tensor4 dq;
  LseTensor softmax_lse;
  TileGrid grid;
  const float* dq_accum;  // as BwdParams has it
  int64_t dq_accum_a_head;
  float softmax_scale;
  int32_t unused;

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("shape", p.shape), visit("dq", p.dq), visit("softmax_lse", p.softmax_lse), visit("grid", p.grid);
    visit("dq_accum", p.dq_accum), visit("dq_accum_a_head", p.dq_accum_a_head);
    visit("softmax_scale", p.softmax_scale), visit("unused", p.unused);
  }
};

/// The grid's splits are two: dk's blocks and dv's.
struct BwdConvertDkdvParams {
  AttentionShape shape;
  Tensor4 dk, dv;
  TileGrid grid;
  int64_t num_splits;     // of the queries
  const float* dk_accum;  // as BwdParams has them
  const float* dv_accum;
  int64_t dk_accum_a_block, dv_accum_a_block;
  float softmax_scale;
  int32_t unused;

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("shape", p.shape), visit("dk", p.dk), visit("dv", p.dv), visit("grid", p.grid);
    visit("num_splits", p.num_splits), visit("dk_accum", p.dk_accum), visit("dv_accum", p.dv_accum);
    visit("dk_accum_a_block", p.dk_accum_a_block), visit("dv_accum_a_block", p.dv_accum_a_block);
    visit("softmax_scale", p.softmax_scale), visit("unused", p.unused);
  }
};

/// The grid's splits are two: dk's blocks and dv's.
struct BwdConvertSelectedParams {
  AttentionShape shape;
  Tensor4 dk, dv;
  TileGrid grid;
  const float* dk_accum;  // as BwdDkdvParams has them
  const float* dv_accum;
  int64_t dk_accum_a_row, dv_accum_a_row, accum_rows, accum_rows_a_batch;
  float softmax_scale;
  int32_t rows;  // of a block

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("shape", p.shape), visit("dk", p.dk), visit("dv", p.dv), visit("grid", p.grid);
    visit("dk_accum", p.dk_accum), visit("dv_accum", p.dv_accum), visit("dk_accum_a_row", p.dk_accum_a_row);
    visit("dv_accum_a_row", p.dv_accum_a_row), visit("accum_rows", p.accum_rows);
    visit("accum_rows_a_batch", p.accum_rows_a_batch), visit("softmax_scale", p.softmax_scale);
    visit("rows", p.rows);
  }
};

struct BwdDbiasParams {
  AttentionShape shape;
  ScoreParams score;
  Tensor4 q, k, v, dout;
  LseTensor softmax_lse;
  const float* delta;  // [batch_size, num_heads_q, seqlen_q]
  BiasTensor dbias;
  int64_t dbias_shape[4];  // its own dimensions (1 where broadcast)

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("shape", p.shape), visit("score", p.score), visit("q", p.q), visit("k", p.k), visit("v", p.v);
    visit("dout", p.dout), visit("softmax_lse", p.softmax_lse), visit("delta", p.delta), visit("dbias", p.dbias);
    visit("dbias_shape", p.dbias_shape);
  }
};

struct BwdDtableParams {
  AttentionShape shape;
  ScoreParams score;
  Tensor4 q, k, v, dout;
  LseTensor softmax_lse;
  const float* delta;  // [batch_size, num_heads_q, seqlen_q]
  TileGrid grid;
  float* sums;  // of the table's elements, row-major
  int64_t sums_size;
  int32_t table, unused;

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("shape", p.shape), visit("score", p.score), visit("q", p.q), visit("k", p.k), visit("v", p.v);
    visit("dout", p.dout), visit("softmax_lse", p.softmax_lse), visit("delta", p.delta), visit("grid", p.grid);
    visit("sums", p.sums), visit("sums_size", p.sums_size), visit("table", p.table), visit("unused", p.unused);
  }
};

struct BwdTableSumsParams {
  AttentionShape shape;
  float* sums;  // as BwdDtableParams has them
  int64_t sums_size;
  void* to;            // the gradient; null where sums are cleared
  int64_t strides[4];  // as ScoreTable has them
  int32_t sizes[4];
  int32_t table, element_bytes, blocks, unused;

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("shape", p.shape), visit("sums", p.sums), visit("sums_size", p.sums_size), visit("to", p.to);
    visit("strides", p.strides), visit("sizes", p.sizes), visit("table", p.table);
    visit("element_bytes", p.element_bytes), visit("blocks", p.blocks), visit("unused", p.unused);
  }
};

struct BwdDsinkParams {
  AttentionShape shape;
  LseTensor softmax_lse;
  SinkTensor sink, dsink;
  const float* delta;  // [batch_size, num_heads_q, seqlen_q]

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("shape", p.shape), visit("softmax_lse", p.softmax_lse), visit("sink", p.sink), visit("dsink", p.dsink);
    visit("delta", p.delta);
  }
};

/// Results of one pass; those of the other, and what is not wanted, are null.
struct ClearRestParams {
  AttentionShape shape;
  Tensor4 out, dq, dk, dv;
  LseTensor softmax_lse;
  int32_t blocks;
  int32_t backward;  // which pass it is, for the host

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("shape", p.shape), visit("out", p.out), visit("dq", p.dq), visit("dk", p.dk), visit("dv", p.dv);
    visit("softmax_lse", p.softmax_lse), visit("blocks", p.blocks), visit("backward", p.backward);
  }
};

}  // namespace tilewise::device
