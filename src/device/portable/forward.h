// The forward kernel: a block owns rows of queries and streams tiles of keys and values past them,
// with an online softmax. Every machine runs this body; what differs stands in its ops_*.h.
#pragma once

#include "device/portable/block_rows.h"
#include "device/portable/dropout.h"
#include "device/portable/key_stream.h"
#include "device/portable/own_rows.h"
#include "device/portable/scores.h"
#include "device/portable/sink.h"
#include "device/portable/softmax.h"
#include "device/portable/store_rows.h"

namespace tilewise::device {

/// Shared memory of the forward kernel.
template <class Ops, KernelConfig C>
struct ForwardShared {
  static constexpr int kBlockRows = C.waves * C.rows_per_wave;
  using Stage = KeyStage<Ops, C, kForMultiply, kForAccumulate>;
  using RowTile = typename OwnRows<Ops, C, C.head_dim>::Tile;
  using Out = OutTile<typename Ops::Layout, kBlockRows, C.head_dim_v>;
  /// Rows that stay here have their own place; rows that move to registers pass through the stages'.
  struct Streams : RowsPart<!C.rows_in_registers, RowTile> {
    Stage stage[C.stages];
  };
  union {
    Streams streams;
    RowTile rows;
    Out out;
  };
};

template <class Ops, KernelConfig C>
class ForwardKernel {
  using Machine = typename Ops::Machine;
  using Layout = typename Ops::Layout;
  using Shared = ForwardShared<Ops, C>;
  using Scores = typename Ops::template Accumulators<C.rows_per_wave, C.tile_cols>;
  using Out = typename Ops::template Accumulators<C.rows_per_wave, C.head_dim_v>;
  using Softmax = OnlineSoftmax<Machine, Scores>;

 public:
  TILEWISE_INLINE static void run(const KernelParams& params, Shared& shared) {
    const GridPlace place = grid_place<Machine>(params.grid);
    const Sequence sequence = sequence_at<C>(params.call, place.batch);
    const BlockRows<C> rows(params.call, sequence, place, Shared::kBlockRows);
    if (rows.first_row >= rows.total_rows) return;
    ForwardKernel kernel(params, shared, sequence, rows, place.split);
    kernel.visit_keys();
    kernel.finish();
  }

 private:
  TILEWISE_INLINE ForwardKernel(const KernelParams& params, Shared& shared, const Sequence& sequence,
                                const BlockRows<C>& rows, int32_t split)
      : params_(params), p_(params.call), shared_(shared), sequence_(sequence), rows_(rows), split_(split) {
    lane_ = Machine::lane();
    wave_row_ = Machine::wave() * C.rows_per_wave;
    out_.clear();
    softmax_.clear();
    TILEWISE_UNROLL
    for (int slot = 0; slot < Scores::kSlots; ++slot) {
      const int32_t row = rows_.first_row + wave_row_ + Scores::row_of_slot(lane_, slot);
      row_scores_[slot] = row_score<C>(p_, sequence_, rows_.batch, rows_.head(row), rows_.query(row));
    }
    band_ = visible_band(p_, sequence_);
    if constexpr (C.dropout) seed_ = dropout_seed(p_);
  }

  /// Of this block's part of the keys.
  TILEWISE_INLINE StreamedTiles tiles() const {
    if (rows_.first_row >= rows_.used_rows) return {0, 0, 0, 0};
    const int32_t last_row = minimum(rows_.first_row + Shared::kBlockRows, rows_.used_rows) - 1;
    StreamedTiles t = key_tiles<C>(p_, sequence_, rows_.query(rows_.first_row), rows_.query(last_row));
    if constexpr (C.split) {
      const int32_t each = ceil_div(t.end - t.begin, params_.grid.num_splits);
      const int32_t begin = minimum(t.begin + each * split_, t.end);
      t.end = minimum(begin + each, t.end);
      t.begin = begin;
    }
    t.full_begin = minimum(maximum(t.full_begin, t.begin), t.end);
    t.full_end = maximum(minimum(t.full_end, t.end), t.full_begin);
    return t;
  }

  TILEWISE_INLINE void visit_keys() {
    const StreamedTiles t = tiles();
    if (t.begin >= t.end) return;
    stream_.open(p_, sequence_, rows_.batch, uniform<Machine>(rows_.head_k()));
    queries_.load(row_tile(), wave_row_, p_.head_dim,
                  [&](int row) { return address_of_row(p_.q, rows_, sequence_, row); });
    stream_.start(stage(t.begin), t.begin);
    // Whether to mask is a branch of one loop: of two loops' bodies the registers do not fit.
    for (int32_t tile = t.begin; tile < t.end; ++tile) step(tile, tile + 1 < t.end, !t.is_full(tile));
  }

  TILEWISE_INLINE typename Shared::RowTile& row_tile() {
    if constexpr (C.rows_in_registers) {
      return shared_.rows;
    } else {
      return shared_.streams.rows;
    }
  }
  TILEWISE_INLINE typename Shared::Stage& stage(int32_t tile) { return shared_.streams.stage[tile % C.stages]; }

  /// Tiles that wait in registers are asked for once the scores have left theirs, where those are few.
  static constexpr bool kLateStart = C.head_dim + C.head_dim_v > Ops::kRoomyDims;

  /// One tile of keys: scores, softmax, and their sum of values. The next tile is under way meanwhile.
  TILEWISE_INLINE void step(int32_t tile, bool more, bool masked) {
    typename Shared::Stage& current = stage(tile);
    stream_.finish(current);
    if (!kLateStart && more) stream_.start(stage(tile + 1), tile + 1);

    Scores scores;
    scores.clear();
    queries_.multiply(scores, row_tile(), wave_row_, current.keys.for_multiply());
    const int32_t first_key = tile * C.tile_cols;
    if (masked) {
      adjust_scores<Machine, C, true>(scores, p_, row_scores_, band_, first_key);
    } else {
      adjust_scores<Machine, C, false>(scores, p_, row_scores_, band_, first_key);
    }
    softmax_.update(scores, out_, C.plain_scale ? uniform<Machine>(p_.softmax_scale * kLog2E) : 1.0f);
    if constexpr (C.dropout) {
      for_each_draw<Machine>(scores, p_, seed_, row_scores_, first_key,
                             [](int, int, auto&& x, bool kept) { x = kept ? x : 0.0f; });
    }
    const auto weights = Ops::template to_operand<C.element>(scores);
    if (kLateStart && more) stream_.start(stage(tile + 1), tile + 1);
    Ops::template accumulate<C.element>(out_, weights, current.values.for_accumulate());
  }

  /// Divides by the sum, joins the sink, and writes out and lse. The largest score of a row that sees something has
  /// weight 1, and NaN among its scores makes the sum a NaN: a sum of 0 is that of a row that sees nothing.
  TILEWISE_INLINE void finish() {
    softmax_.reduce_sum();
    typename Out::PerRow factor;
    TILEWISE_UNROLL
    for (int slot = 0; slot < Scores::kSlots; ++slot) {
      const int32_t row = rows_.first_row + wave_row_ + Scores::row_of_slot(lane_, slot);
      const bool used = row < rows_.used_rows, seen = softmax_.sum[slot] != 0.0f;
      float reference = softmax_.reference[slot], sum = softmax_.sum[slot], weight = 1.0f;
      if constexpr (C.sink && !C.split) {
        const float sink = load_sink<Machine, C>(p_, rows_.head(minimum(row, rows_.total_rows - 1))) * kLog2E;
        const float moved = maximum(reference, sink);
        weight = seen ? Machine::exp2(reference - moved) : 0.0f;
        sum = sum * weight + (sink == -kInfinity ? 0.0f : Machine::exp2(sink - moved));
        reference = moved;
      }
      const float lse = used ? (reference + Machine::log2(sum)) * kLn2 : -kInfinity;
      factor[slot] = used && seen ? weight / sum : 0.0f;
      // A sink that takes all leaves a row its NaN.
      if constexpr (C.sink && !C.split) factor[slot] = used && seen ? maximum(factor[slot], kLeastNormal) : 0.0f;
      if constexpr (C.dropout) factor[slot] *= p_.dropout_scale;
      if (row < rows_.total_rows && owns_row(slot)) store_lse(row, lse);
    }
    out_.scale_or_clear_rows(factor);
    if constexpr (C.split) {
      store_partial();
    } else {
      write_out();
    }
  }

  /// One of the lanes that hold parts of a row.
  TILEWISE_INLINE bool owns_row(int slot) const { return (lane_ & Layout::kRowMask) == 0 || slot < 0; }

  TILEWISE_INLINE void store_lse(int32_t row, float lse) const {
    const int64_t i = rows_.query(row), head = rows_.head(row);
    if constexpr (C.split) {
      const int64_t of_split = (static_cast<int64_t>(split_) * p_.batch_size + rows_.batch) * p_.num_heads_q + head;
      Machine::store_global(params_.grid.partial_lse + of_split * p_.seqlen_q + i, lse);
    } else if (p_.softmax_lse.data) {
      Machine::store_global(p_.softmax_lse.data + lse_offset(p_.softmax_lse, sequence_, rows_.batch, i, head), lse);
    }
  }

  TILEWISE_INLINE void store_partial() {
    constexpr int kRun = C.vector_rows ? kAdjacentColumns<Layout> : 1;
    out_.template for_each_run<kRun>(lane_, [&](int slot, int col, const FloatRun<kRun>& run) {
      const int32_t row = rows_.first_row + wave_row_ + Out::row_of_slot(lane_, slot);
      if (row >= rows_.total_rows || col >= p_.head_dim_v) return;
      const int64_t of_split =
          (static_cast<int64_t>(split_) * p_.batch_size + rows_.batch) * p_.num_heads_q + rows_.head(row);
      const int64_t place = (of_split * p_.seqlen_q + rows_.query(row)) * p_.head_dim_v + col;
      Machine::store_global(reinterpret_cast<FloatRun<kRun>*>(params_.grid.partial_out + place), run);
    });
  }

  TILEWISE_INLINE void write_out() {
    write_rows<Ops, C>(shared_.out, out_, wave_row_, p_.head_dim_v,
                       [&](int row) { return address_of_result(p_.out, rows_, sequence_, row); });
  }

  const KernelParams& params_;
  const AttentionParams& p_;
  Shared& shared_;
  Sequence sequence_;
  BlockRows<C> rows_;
  int32_t split_;
  int lane_, wave_row_;
  KeyStream<Ops, C, typename Shared::Stage> stream_;
  OwnRows<Ops, C, C.head_dim> queries_;
  RowScore row_scores_[Scores::kSlots];
  VisibleBand band_;
  DropoutSeed seed_;
  Softmax softmax_;
  Out out_;
};

}  // namespace tilewise::device
