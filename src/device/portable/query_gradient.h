// dq: a block owns rows of queries (and of dout) and streams keys and values past them. It has one
// owner and one order of summation, so dq is reproducible without atomics.
#pragma once

#include "device/portable/dropout.h"
#include "device/portable/gradients.h"
#include "device/portable/key_stream.h"
#include "device/portable/own_rows.h"
#include "device/portable/store_rows.h"

namespace tilewise::device {

template <class Ops, KernelConfig C>
struct QueryGradientShared {
  static constexpr int kBlockRows = C.waves * C.rows_per_wave;
  using Stage = KeyStage<Ops, C, kForBoth, kForMultiply>;
  using QueryRows = typename OwnRows<Ops, C, C.head_dim>::Tile;
  using DoutRows = typename OwnRows<Ops, C, C.head_dim_v>::Tile;
  using Out = OutTile<typename Ops::Layout, kBlockRows, C.head_dim>;
  struct Rows {
    QueryRows queries;
    DoutRows douts;
  };
  /// Rows that stay here have their own place; rows that move to registers pass through the stages'.
  struct Streams : RowsPart<!C.rows_in_registers, Rows> {
    Stage stage[C.stages];
  };
  union {
    Streams streams;
    QueryRows queries;
    DoutRows douts;
    Out out;
  };

  TILEWISE_INLINE QueryRows& query_rows() {
    if constexpr (C.rows_in_registers) {
      return queries;
    } else {
      return streams.rows.queries;
    }
  }
  TILEWISE_INLINE DoutRows& dout_rows() {
    if constexpr (C.rows_in_registers) {
      return douts;
    } else {
      return streams.rows.douts;
    }
  }
};

template <class Ops, KernelConfig C>
class QueryGradientKernel {
  using Machine = typename Ops::Machine;
  using Shared = QueryGradientShared<Ops, C>;
  using Scores = typename Ops::template Accumulators<C.rows_per_wave, C.tile_cols>;
  using Out = typename Ops::template Accumulators<C.rows_per_wave, C.head_dim>;

 public:
  TILEWISE_INLINE static void run(const KernelParams& params, Shared& shared) {
    const GridPlace place = grid_place<Machine>(params.grid);
    const Sequence sequence = sequence_at<C>(params.call, place.batch);
    const BlockRows<C> rows(params.call, sequence, place, Shared::kBlockRows);
    if (rows.first_row >= rows.total_rows) return;
    QueryGradientKernel kernel(params, shared, sequence, rows);
    kernel.visit_keys();
    kernel.finish();
  }

 private:
  TILEWISE_INLINE QueryGradientKernel(const KernelParams& params, Shared& shared, const Sequence& sequence,
                                      const BlockRows<C>& rows)
      : p_(params.call), shared_(shared), sequence_(sequence), rows_(rows) {
    lane_ = Machine::lane();
    wave_row_ = Machine::wave() * C.rows_per_wave;
    out_.clear();
    TILEWISE_UNROLL
    for (int slot = 0; slot < Scores::kSlots; ++slot) {
      const int32_t row = rows_.first_row + wave_row_ + Scores::row_of_slot(lane_, slot);
      row_scores_[slot] = row_score<C>(p_, sequence_, rows_.batch, rows_.first_head, row);
      statistics_[slot] = load_statistics<Machine>(p_, params.grid, sequence_, rows_.batch, rows_.first_head, row);
    }
    band_ = visible_band(p_, sequence_);
    if constexpr (C.dropout) seed_ = dropout_seed(p_);
  }

  TILEWISE_INLINE void visit_keys() {
    if (rows_.first_row >= rows_.used_rows) return;
    const int32_t last = minimum(rows_.first_row + Shared::kBlockRows, rows_.used_rows) - 1;
    const StreamedTiles t = key_tiles<C>(p_, sequence_, rows_.first_row, last);
    if (t.begin >= t.end) return;
    stream_.open(p_, sequence_, rows_.batch, uniform<Machine>(rows_.head_k()));
    queries_.load(shared_.query_rows(), wave_row_, p_.head_dim,
                  [&](int row) { return address_of_row(p_.q, rows_, sequence_, row); });
    douts_.load(shared_.dout_rows(), wave_row_, p_.head_dim_v,
                [&](int row) { return address_of_row(p_.dout, rows_, sequence_, row); });
    stream_.start(stage(t.begin), t.begin);
    for (int32_t tile = t.begin; tile < t.end; ++tile) step(tile, tile + 1 < t.end, !t.is_full(tile));
  }

  TILEWISE_INLINE typename Shared::Stage& stage(int32_t tile) { return shared_.streams.stage[tile % C.stages]; }

  TILEWISE_INLINE void step(int32_t tile, bool more, bool masked) {
    typename Shared::Stage& current = stage(tile);
    stream_.finish(current);
    if (more) stream_.start(stage(tile + 1), tile + 1);

    Scores scores, gradients;
    scores.clear();
    gradients.clear();
    queries_.multiply(scores, shared_.query_rows(), wave_row_, current.keys.for_multiply());
    douts_.multiply(gradients, shared_.dout_rows(), wave_row_, current.values.for_multiply());
    const int32_t first_key = tile * C.tile_cols;
    if constexpr (C.dropout) {
      for_each_draw<Machine>(gradients, p_, seed_, row_scores_, first_key,
                             [&](int, int, auto&& x, bool kept) { x = kept ? x * p_.dropout_scale : 0.0f; });
    }
    if constexpr (C.plain_scale && Scores::kPacked) {
      plain_gradients(scores, gradients);
      if (masked) hide(scores, first_key);
    } else if (masked) {
      score_gradients<true>(scores, gradients, first_key);
    } else {
      score_gradients<false>(scores, gradients, first_key);
    }
    Ops::template accumulate<C.element>(out_, Ops::template to_operand<C.element>(scores),
                                        current.keys.for_accumulate());
  }

  /// Turns products into what dq sums up, in the place of the scores.
  template <bool kMasked>
  TILEWISE_INLINE void score_gradients(Scores& scores, Scores& gradients, int32_t first_key) {
    const int lane = kMasked ? Machine::not_hoisted(lane_) : lane_;
    scores.for_each_pair(gradients, lane, [&](int slot, int col, auto&& score, auto&& gradient) {
      const int32_t key = first_key + col;
      const ScoreWeight of_score =
          weight_of<Machine, C>(p_, row_scores_[slot], band_.seqlen_k, key, score, statistics_[slot].lse);
      bool hidden = of_score.hidden;
      if constexpr (kMasked) hidden |= !is_visible<C>(band_, row_scores_[slot].diagonal, key);
      score = hidden ? 0.0f : of_score.weight * (gradient - statistics_[slot].delta) * of_score.slope;
    });
  }

  /// The same without options, two elements at a time.
  TILEWISE_INLINE void plain_gradients(Scores& scores, Scores& gradients) {
    const float scale = p_.softmax_scale * kLog2E;
    scores.for_each_packed(gradients, lane_, [&](int slot, int, auto& score, auto& gradient) {
      auto weight = score * scale - statistics_[slot].lse;
      weight[0] = Machine::exp2(weight[0]);
      weight[1] = Machine::exp2(weight[1]);
      score = weight * (gradient - statistics_[slot].delta);
    });
  }

  TILEWISE_INLINE void hide(Scores& scores, int32_t first_key) {
    scores.for_each(Machine::not_hoisted(lane_), [&](int slot, int col, auto&& score) {
      score = is_visible<C>(band_, row_scores_[slot].diagonal, first_key + col) ? score : 0.0f;
    });
  }

  TILEWISE_INLINE void finish() {
    // Hidden keys of NaN, times 0, don't reach a row that sees nothing.
    out_.scale_used_rows(lane_, p_.softmax_scale, [&](int row) {
      return sees_something<Machine>(p_, sequence_, rows_.batch, rows_.first_head, rows_.first_row + wave_row_ + row);
    });
    write_rows<Ops, C>(shared_.out, out_, wave_row_, p_.head_dim,
                       [&](int row) { return address_of_result(p_.dq, rows_, sequence_, row); });
  }

  const AttentionParams& p_;
  Shared& shared_;
  Sequence sequence_;
  BlockRows<C> rows_;
  int lane_, wave_row_;
  KeyStream<Ops, C, typename Shared::Stage> stream_;
  OwnRows<Ops, C, C.head_dim> queries_;
  OwnRows<Ops, C, C.head_dim_v> douts_;
  RowScore row_scores_[Scores::kSlots];
  QueryStatistics statistics_[Scores::kSlots];
  VisibleBand band_;
  DropoutSeed seed_;
  Out out_;
};

}  // namespace tilewise::device
