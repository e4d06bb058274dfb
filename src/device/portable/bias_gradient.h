// dbias: a block owns a patch of it and adds up what reaches it over the dimensions that the bias was
// broadcast along, in a fixed order, so that no atomics are needed and the sum is reproducible.
#pragma once

#include "device/portable/dropout.h"
#include "device/portable/gradients.h"
#include "device/portable/loader.h"

namespace tilewise::device {

template <class Ops, KernelConfig C>
struct BiasGradientShared {
  static constexpr int kBlockRows = C.waves * C.rows_per_wave;
  using KeyTile = StreamTile<C.tile_cols, C.head_dim, kForMultiply, Ops::kTransposedCopies>;
  using ValueTile = StreamTile<C.tile_cols, C.head_dim_v, kForMultiply, Ops::kTransposedCopies>;
  struct Streams {
    SharedTile<kBlockRows, C.head_dim> queries;
    SharedTile<kBlockRows, C.head_dim_v> douts;
    KeyTile keys;
    ValueTile values;
  };
  union {
    Streams streams;
    float sums[kBlockRows][C.tile_cols];
  };
};

template <class Ops, KernelConfig C>
class BiasGradientKernel {
  using Machine = typename Ops::Machine;
  using Shared = BiasGradientShared<Ops, C>;
  using Scores = typename Ops::template Accumulators<C.rows_per_wave, C.tile_cols>;
  static constexpr int kThreads = C.waves * Machine::kLanes;

 public:
  TILEWISE_INLINE static void run(const KernelParams& params, Shared& shared) {
    BiasGradientKernel kernel(params, shared);
    kernel.visit_sequences();
    kernel.finish();
  }

 private:
  /// Indices [begin, end) of a dimension that end in one index of dbias.
  struct Span {
    int64_t begin, end;
  };
  TILEWISE_INLINE static Span span_of(int64_t index, int64_t size, int64_t all) {
    return size > 1 ? Span{index, index + 1} : Span{0, all};
  }

  TILEWISE_INLINE BiasGradientKernel(const KernelParams& params, Shared& shared)
      : p_(params.call), grid_(params.grid), shared_(shared) {
    lane_ = Machine::lane();
    wave_row_ = Machine::wave() * C.rows_per_wave;
    const int64_t* shape = p_.dbias_shape;
    all_queries_ = shape[2] <= 1;
    all_keys_ = shape[3] <= 1;
    int64_t block = Machine::block();
    const int64_t key_tiles = all_keys_ ? 1 : ceil_div<int64_t>(shape[3], C.tile_cols);
    const int64_t row_tiles = all_queries_ ? 1 : ceil_div<int64_t>(shape[2], Shared::kBlockRows);
    key_tile_ = static_cast<int32_t>(block % key_tiles);
    block /= key_tiles;
    row_tile_ = static_cast<int32_t>(block % row_tiles);
    block /= row_tiles;
    head_ = block % shape[1];
    batch_ = block / shape[1];
    sums_.clear();
    if constexpr (C.dropout) seed_ = dropout_seed(p_);
  }

  TILEWISE_INLINE void visit_sequences() {
    const Span batches = span_of(batch_, p_.dbias_shape[0], p_.batch_size);
    const Span heads = span_of(head_, p_.dbias_shape[1], p_.num_heads_q);
    for (int64_t b = batches.begin; b < batches.end; ++b) {
      const Sequence s = sequence_at<C>(p_, b);
      if (s.seqlen_q == 0 || s.seqlen_k == 0) continue;
      for (int64_t h = heads.begin; h < heads.end; ++h) visit_head(s, b, h);
    }
  }

  TILEWISE_INLINE void visit_head(const Sequence& s, int64_t batch, int64_t head) {
    const auto seqlen_q = static_cast<int32_t>(s.seqlen_q), seqlen_k = static_cast<int32_t>(s.seqlen_k);
    const int32_t row_begin = all_queries_ ? 0 : row_tile_ * Shared::kBlockRows;
    const int32_t row_end = all_queries_ ? seqlen_q : minimum(seqlen_q, row_begin + Shared::kBlockRows);
    // Columns of dbias count from the sequence's first key in memory, keys from its first used one.
    const auto leftpad = static_cast<int32_t>(s.leftpad);
    const int32_t key_begin = all_keys_ ? 0 : key_tile_ * C.tile_cols - leftpad;
    const int32_t key_end = all_keys_ ? seqlen_k : minimum(seqlen_k, key_begin + C.tile_cols);
    for (int32_t first_row = row_begin; first_row < row_end; first_row += Shared::kBlockRows) {
      for (int32_t first_key = key_begin; first_key < key_end; first_key += C.tile_cols) {
        add_patch(s, batch, head, first_row, first_key);
      }
    }
  }

  TILEWISE_INLINE void add_patch(const Sequence& s, int64_t batch, int64_t head, int32_t first_row, int32_t first_key) {
    load_patch(s, batch, head, first_row, first_key);
    Scores scores, gradients;
    scores.clear();
    gradients.clear();
    const auto& streams = shared_.streams;
    Ops::template multiply<C.element, true>(scores, streams.queries, wave_row_, streams.keys.for_multiply());
    Ops::template multiply<C.element, true>(gradients, streams.douts, wave_row_, streams.values.for_multiply());
    scores.for_each_tile([](auto& tile) { compute_by_here<Machine>(tile); });
    gradients.for_each_tile([](auto& tile) { compute_by_here<Machine>(tile); });
    RowScore rows[Scores::kSlots];
    QueryStatistics statistics[Scores::kSlots];
    TILEWISE_UNROLL
    for (int slot = 0; slot < Scores::kSlots; ++slot) {
      const int32_t i = first_row + wave_row_ + Scores::row_of_slot(lane_, slot);
      rows[slot] = row_score<C>(p_, s, batch, head, i);
      statistics[slot] = load_statistics<Machine>(p_, grid_, s, batch, head, i);
    }
    if constexpr (C.dropout) {
      gradients.for_each(Machine::not_hoisted(lane_), [&](int slot, int col, auto&& x) {
        const bool kept = keeps(p_, seed_, rows[slot].batch_head, rows[slot].query, first_key + col);
        x = kept ? x * p_.dropout_scale : 0.0f;
      });
    }
    const VisibleBand band = visible_band(p_, s);
    scores.for_each_pair(gradients, Machine::not_hoisted(lane_), [&](int slot, int col, auto&& score, auto&& gradient) {
      const int32_t key = first_key + col;
      const ScoreWeight of_score =
          weight_of<Machine, C>(p_, rows[slot], band.seqlen_k, maximum(key, 0), score, statistics[slot].lse);
      // Rows without weight, of queries past the end too, may still have gradients of NaN.
      const bool visible = key >= 0 && is_visible<C>(band, rows[slot].diagonal, key) && !of_score.hidden &&
                           statistics[slot].lse != kInfinity;
      score = visible ? of_score.weight * (gradient - statistics[slot].delta) : 0.0f;
    });
    sums_.for_each_pair(scores, lane_, [](int, int, auto&& sum, auto&& x) { sum += x; });
    Machine::barrier();  // the patch was read by all
  }

  TILEWISE_INLINE void load_patch(const Sequence& s, int64_t batch, int64_t head, int32_t first_row,
                                  int32_t first_key) {
    const int64_t head_k = head / (p_.num_heads_q / p_.num_heads_k);
    load_queries(shared_.streams.queries, p_.q, s, batch, head, first_row, p_.head_dim);
    load_queries(shared_.streams.douts, p_.dout, s, batch, head, first_row, p_.head_dim_v);
    load_tile(shared_.streams.keys.rows, key_source(p_.k, s, batch, head_k, p_.head_dim), first_key);
    load_tile(shared_.streams.values.rows, key_source(p_.v, s, batch, head_k, p_.head_dim_v), first_key);
    Ops::finish_copies();
    Machine::barrier();
  }

  template <class Tile>
  TILEWISE_INLINE void load_queries(Tile& tile, const Tensor4& t, const Sequence& s, int64_t batch, int64_t head,
                                    int32_t first_row, int64_t cols) {
    const RowSource source{static_cast<const uint16_t*>(t.data) + row_offset(t, s, batch, 0, head), t.seq_stride,
                           static_cast<int32_t>(s.seqlen_q), static_cast<int32_t>(cols)};
    load_tile(tile, source, first_row);
  }

  /// Rows outside the source repeat its first or last one: their weights are masked away.
  template <class Tile>
  TILEWISE_INLINE void load_tile(Tile& tile, const RowSource& source, int32_t first_row) {
    constexpr int kRowChunks = Tile::kCols / kChunk;
    keep_order<Machine>();  // what passes through registers is one tile at a time, and so are addresses
    for (int unit = Machine::not_hoisted(Machine::thread()); unit < Tile::kRows * kRowChunks; unit += kThreads) {
      const int row = unit / kRowChunks, chunk = unit % kRowChunks;
      const int64_t from = maximum(0, minimum(first_row + row, source.rows - 1));
      copy_chunk<Ops, C>(tile.chunk(row, chunk), source.data + from * source.stride, chunk * kChunk, source.cols);
    }
  }

  /// Sums the patch along broadcast queries and keys, and writes it.
  TILEWISE_INLINE void finish() {
    Machine::barrier();
    sums_.for_each(lane_, [&](int slot, int col, auto&& x) {
      Machine::store_shared(&shared_.sums[wave_row_ + Scores::row_of_slot(lane_, slot)][col], static_cast<float>(x));
    });
    Machine::barrier();
    const int64_t rows = all_queries_ ? minimum<int64_t>(p_.dbias_shape[2], 1)
                                      : minimum<int64_t>(Shared::kBlockRows, p_.dbias_shape[2] - first_dbias_row());
    const int64_t cols = all_keys_ ? minimum<int64_t>(p_.dbias_shape[3], 1)
                                   : minimum<int64_t>(C.tile_cols, p_.dbias_shape[3] - first_dbias_col());
    for (int64_t unit = Machine::thread(); unit < rows * cols; unit += kThreads) {
      const auto row = static_cast<int>(unit / cols), col = static_cast<int>(unit % cols);
      const int row_end = all_queries_ ? Shared::kBlockRows : row + 1, col_end = all_keys_ ? C.tile_cols : col + 1;
      float sum = 0.0f;
      for (int i = row; i < row_end; ++i) {
        for (int j = col; j < col_end; ++j) sum += Machine::template load_shared<float>(&shared_.sums[i][j]);
      }
      store(first_dbias_row() + row, first_dbias_col() + col, sum);
    }
  }

  TILEWISE_INLINE int64_t first_dbias_row() const { return static_cast<int64_t>(row_tile_) * Shared::kBlockRows; }
  TILEWISE_INLINE int64_t first_dbias_col() const { return static_cast<int64_t>(key_tile_) * C.tile_cols; }

  TILEWISE_INLINE void store(int64_t row, int64_t col, float value) const {
    const BiasTensor& to = p_.dbias;
    const int64_t place =
        batch_ * to.batch_stride + head_ * to.head_stride + row * to.query_stride + col * to.key_stride;
    if constexpr (C.bias_type == kBiasF32) {
      Machine::store_global(static_cast<float*>(to.data) + place, value);
    } else {
      Machine::store_global(static_cast<uint16_t*>(to.data) + place,
                            static_cast<uint16_t>(Machine::template pack<C.element>(value, 0.0f)));
    }
  }

  const AttentionParams& p_;
  const GridParams& grid_;
  Shared& shared_;
  int lane_, wave_row_;
  bool all_queries_, all_keys_;
  int32_t key_tile_, row_tile_;
  int64_t head_, batch_;
  DropoutSeed seed_;
  Scores sums_;
};

}  // namespace tilewise::device
