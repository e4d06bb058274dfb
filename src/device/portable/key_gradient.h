// dk and dv: a block owns rows of keys and values and streams queries and their gradients past them,
// head after head of the group, so that dk and dv have one owner and one order of summation.
#pragma once

#include "device/portable/dropout.h"
#include "device/portable/gradients.h"
#include "device/portable/key_block.h"
#include "device/portable/own_rows.h"
#include "device/portable/store_rows.h"

namespace tilewise::device {

/// Of two neighbouring queries, which a lane that holds both columns brings with one load.
struct alignas(16) TwoStatistics {
  float lse[2], delta[2];
};

template <class Ops, KernelConfig C>
struct KeyGradientShared {
  static constexpr int kBlockRows = C.waves * C.rows_per_wave;
  static constexpr int kQueryUse = C.wants_dk ? kForBoth : kForMultiply;
  static constexpr int kDoutUse = !C.wants_dk ? kForAccumulate : C.wants_dv ? kForBoth : kForMultiply;
  using QueryTile = StreamTile<C.tile_cols, C.head_dim, kQueryUse, Ops::kTransposedCopies>;
  using DoutTile = StreamTile<C.tile_cols, C.head_dim_v, kDoutUse, Ops::kTransposedCopies>;
  struct Stage {
    QueryTile queries;
    DoutTile douts;
    TwoStatistics statistics[C.tile_cols / 2];
  };
  using KeyRows = typename OwnRows<Ops, C, C.head_dim>::Tile;
  using ValueRows = typename OwnRows<Ops, C, C.head_dim_v>::Tile;
  using KeyOut = OutTile<typename Ops::Layout, kBlockRows, C.head_dim>;
  using ValueOut = OutTile<typename Ops::Layout, kBlockRows, C.head_dim_v>;
  struct Rows {
    KeyRows keys;
    ValueRows values;
  };
  /// Rows that stay here have their own place; rows that move to registers pass through the stages'.
  struct Streams : RowsPart<!C.rows_in_registers, Rows> {
    Stage stage[C.stages];
  };
  union {
    Streams streams;
    KeyRows keys;
    ValueRows values;
    KeyOut key_out;
    ValueOut value_out;
  };

  TILEWISE_INLINE KeyRows& key_rows() {
    if constexpr (C.rows_in_registers) {
      return keys;
    } else {
      return streams.rows.keys;
    }
  }
  TILEWISE_INLINE ValueRows& value_rows() {
    if constexpr (C.rows_in_registers) {
      return values;
    } else {
      return streams.rows.values;
    }
  }
};

template <class Ops, KernelConfig C>
class KeyGradientKernel {
  using Machine = typename Ops::Machine;
  using Shared = KeyGradientShared<Ops, C>;
  using Scores = typename Ops::template Accumulators<C.rows_per_wave, C.tile_cols>;
  using KeySums = typename Ops::template Accumulators<C.rows_per_wave, C.head_dim>;
  using ValueSums = typename Ops::template Accumulators<C.rows_per_wave, C.head_dim_v>;
  using Block = KeyBlock<C>;
  using Position = QueryPosition;
  static constexpr int kThreads = C.waves * Machine::kLanes;
  static_assert(kThreads >= C.tile_cols, "a thread brings the statistics of one query");

 public:
  TILEWISE_INLINE static void run(const KernelParams& params, Shared& shared) {
    const GridPlace place = grid_place<Machine>(params.grid);
    const Sequence sequence = sequence_at<C>(params.call, place.batch);
    if (static_cast<int64_t>(place.tile) * Shared::kBlockRows >= sequence.all_k) return;
    KeyGradientKernel kernel(params, shared, Block(params.call, sequence, place, Shared::kBlockRows));
    kernel.visit_queries();
    kernel.finish();
  }

 private:
  TILEWISE_INLINE KeyGradientKernel(const KernelParams& params, Shared& shared, const Block& block)
      : p_(params.call), grid_(params.grid), shared_(shared), block_(block) {
    lane_ = Machine::lane();
    wave_row_ = Machine::wave() * C.rows_per_wave;
    dk_.clear();
    dv_.clear();
    if constexpr (C.dropout) seed_ = dropout_seed(p_);
  }

  TILEWISE_INLINE void visit_queries() {
    const typename Block::Tiles t = block_.tiles(Shared::kBlockRows);
    const int32_t steps = t.count() * block_.group;
    if (steps == 0) return;
    keys_.load(shared_.key_rows(), wave_row_, p_.head_dim, [&](int row) { return block_.address_of_key(p_.k, row); });
    if constexpr (C.wants_dk) {
      values_.load(shared_.value_rows(), wave_row_, p_.head_dim_v,
                   [&](int row) { return block_.address_of_key(p_.v, row); });
    }
    Position at = block_.first_position(t);
    start(at);
    while (at.step < steps) {
      const Position next = at.next(t);
      visit(at, next, next.step < steps, C.ranged && !t.is_full(at.tile));
      at = next;
    }
  }

  TILEWISE_INLINE typename Shared::Stage& stage(int32_t step) { return shared_.streams.stage[step % C.stages]; }
  TILEWISE_INLINE void start(const Position& at) {
    const int32_t first = at.tile * C.tile_cols;
    query_loader_.start(stage(at.step).queries, block_.query_source(p_.q, at.head, p_.head_dim), first);
    dout_loader_.start(stage(at.step).douts, block_.query_source(p_.dout, at.head, p_.head_dim_v), first);
    const int thread = Machine::thread();
    if (thread < C.tile_cols) {
      statistics_ = load_statistics<Machine>(p_, grid_, block_.sequence, block_.place.batch, at.head, first + thread);
    }
  }

  TILEWISE_INLINE void finish_stage(int32_t step) {
    typename Shared::Stage& current = stage(step);
    if constexpr (C.stages == 1) Machine::barrier();  // the last tile was read by all
    Ops::finish_copies();
    query_loader_.finish(current.queries);
    dout_loader_.finish(current.douts);
    const int thread = Machine::thread();
    if (thread < C.tile_cols) {
      TwoStatistics& two = current.statistics[thread / 2];
      Machine::store_shared(&two.lse[thread % 2], statistics_.lse);
      Machine::store_shared(&two.delta[thread % 2], statistics_.delta);
    }
    Machine::barrier();
  }

  TILEWISE_INLINE static TwoStatistics statistics_of(const typename Shared::Stage& stage, int col) {
    return Machine::template load_shared<TwoStatistics>(&stage.statistics[col / 2]);
  }

  TILEWISE_INLINE void visit(const Position& at, const Position& next, bool more, bool masked) {
    finish_stage(at.step);
    if (more) start(next);
    const typename Shared::Stage& current = stage(at.step);
    const int32_t first_query = at.tile * C.tile_cols;

    Scores scores, gradients;
    scores.clear();
    gradients.clear();
    keys_.multiply(scores, shared_.key_rows(), wave_row_, current.queries.for_multiply());
    if constexpr (C.wants_dk) {
      values_.multiply(gradients, shared_.value_rows(), wave_row_, current.douts.for_multiply());
    }
    if constexpr (C.plain_scale && !C.dropout && Scores::kPacked) {
      plain_gradients(scores, gradients, current);
      if (masked) hide(scores, gradients, first_query);
    } else if (masked) {
      score_gradients<true>(scores, gradients, current, at.head, first_query);
    } else {
      score_gradients<false>(scores, gradients, current, at.head, first_query);
    }
    if constexpr (C.wants_dv) {
      Ops::template accumulate<C.element>(dv_, Ops::template to_operand<C.element>(scores),
                                          current.douts.for_accumulate());
    }
    if constexpr (C.wants_dk) {
      Ops::template accumulate<C.element>(dk_, Ops::template to_operand<C.element>(gradients),
                                          current.queries.for_accumulate());
    }
  }

  /// Turns products into weights (for dv) and score gradients (for dk), each in its place.
  template <bool kMasked>
  TILEWISE_INLINE void score_gradients(Scores& scores, Scores& gradients, const typename Shared::Stage& current,
                                       int32_t head, int32_t first_query) {
    const RowScore of_head = row_score<C>(p_, block_.sequence, block_.place.batch, head, 0);
    const int lane = kMasked ? Machine::not_hoisted(lane_) : lane_;
    scores.for_each_pair(gradients, lane, [&](int slot, int col, auto&& score, auto&& gradient) {
      const int32_t key = block_.first_key + wave_row_ + Scores::row_of_slot(lane, slot), query = first_query + col;
      const RowScore row = block_.query_score(of_head, query);
      float slope = 1.0f;
      const TwoStatistics two = statistics_of(current, col);
      const bool odd = (col & 1) != 0;  // chosen, not indexed: an indexed array lives in memory
      const QueryStatistics of_query{odd ? two.lse[1] : two.lse[0], odd ? two.delta[1] : two.delta[0]};
      float weight = weight_of<Machine, C>(p_, row, block_.band.seqlen_k, maximum(key, 0), score, of_query.lse, slope);
      if constexpr (kMasked) weight = block_.band.holds(key - row.diagonal) ? weight : 0.0f;
      float kept = weight;
      if constexpr (C.dropout) {
        const bool keep = keeps(p_, seed_, of_head.batch_head, query, key);
        kept = keep ? weight * p_.dropout_scale : 0.0f;
        gradient = keep ? gradient * p_.dropout_scale : 0.0f;
      }
      gradient = weight * (gradient - of_query.delta) * slope;
      score = kept;
    });
  }

  /// The same without options, two elements at a time.
  TILEWISE_INLINE void plain_gradients(Scores& scores, Scores& gradients, const typename Shared::Stage& current) {
    const float scale = p_.softmax_scale * kLog2E;
    scores.for_each_packed(gradients, lane_, [&](int, int col, auto& score, auto& gradient) {
      const TwoStatistics two = statistics_of(current, col);
      const typename Scores::Pair lse{two.lse[0], two.lse[1]}, delta{two.delta[0], two.delta[1]};
      const auto exponent = score * scale - lse;
      score[0] = Machine::exp2(exponent[0]);
      score[1] = Machine::exp2(exponent[1]);
      gradient = score * (gradient - delta);
    });
  }

  TILEWISE_INLINE void hide(Scores& scores, Scores& gradients, int32_t first_query) {
    const int lane = Machine::not_hoisted(lane_);
    scores.for_each_pair(gradients, lane, [&](int slot, int col, auto&& score, auto&& gradient) {
      const int32_t key = block_.first_key + wave_row_ + Scores::row_of_slot(lane, slot);
      const bool visible = block_.band.holds(key - (first_query + col + block_.diagonal));
      score = visible ? score : 0.0f;
      gradient = visible ? gradient : 0.0f;
    });
  }

  /// The outputs take the stages' place, one after the other.
  TILEWISE_INLINE void finish() {
    if constexpr (C.wants_dk) write(shared_.key_out, dk_, p_.softmax_scale, p_.dk, p_.head_dim);
    if constexpr (C.wants_dv) write(shared_.value_out, dv_, 1.0f, p_.dv, p_.head_dim_v);
  }

  template <class Tile, class Sums>
  TILEWISE_INLINE void write(Tile& tile, Sums& sums, float scale, const Tensor4& to, int64_t cols) {
    if (!to.data) return;
    typename Sums::PerRow factor;
    TILEWISE_UNROLL
    for (int slot = 0; slot < Sums::kSlots; ++slot) {
      factor[slot] = block_.used(wave_row_ + Sums::row_of_slot(lane_, slot)) ? scale : 0.0f;
    }
    sums.scale_or_clear_rows(factor);
    write_rows<Ops, C>(tile, sums, wave_row_, cols,
                       [&](int row) -> uint16_t* { return block_.address_of_gradient(to, row); });
  }

  const AttentionParams& p_;
  const GridParams& grid_;
  Shared& shared_;
  Block block_;
  int lane_, wave_row_;
  TileLoader<Ops, C, typename Shared::QueryTile> query_loader_;
  TileLoader<Ops, C, typename Shared::DoutTile> dout_loader_;
  OwnRows<Ops, C, C.head_dim> keys_;
  OwnRows<Ops, C, C.head_dim_v> values_;
  QueryStatistics statistics_;
  DropoutSeed seed_;
  KeySums dk_;
  ValueSums dv_;
};

}  // namespace tilewise::device
