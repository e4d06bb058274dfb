// dk and dv: a block owns rows of keys and values and streams queries and their gradients past them,
// head after head of the group, so that dk and dv have one owner and one order of summation.
#pragma once

#include "device/portable/own_rows.h"
#include "device/portable/query_stream.h"
#include "device/portable/score_gradients.h"
#include "device/portable/store_rows.h"

namespace tilewise::device {

template <class Ops, KernelConfig C>
struct KeyGradientShared {
  static constexpr int kBlockRows = C.waves * C.rows_per_wave;
  static constexpr int kQueryUse = C.wants_dk ? kForBoth : kForMultiply;
  static constexpr int kDoutUse = !C.wants_dk ? kForAccumulate : C.wants_dv ? kForBoth : kForMultiply;
  using Stage = QueryStage<Ops, C, kQueryUse, kDoutUse>;
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
      : p_(params.call),
        grid_(params.grid),
        shared_(shared),
        block_(block),
        lane_(Machine::lane()),
        wave_row_(Machine::wave() * C.rows_per_wave) {
    if constexpr (C.dropout) seed_ = dropout_seed(p_);
    dk_.clear();
    dv_.clear();
  }

  TILEWISE_INLINE void visit_queries() {
    const StreamedTiles tiles = block_.tiles(Shared::kBlockRows);
    if (tiles.count() == 0) return;
    keys_.load(shared_.key_rows(), wave_row_, p_.head_dim, [&](int row) { return block_.address_of_key(p_.k, row); });
    if constexpr (C.wants_dk) {
      values_.load(shared_.value_rows(), wave_row_, p_.head_dim_v,
                   [&](int row) { return block_.address_of_key(p_.v, row); });
    }
    stream_.walk(shared_.streams.stage, block_, grid_, tiles, 0, block_.steps(tiles),
                 [&](const auto& current, const QueryPosition& at, bool masked) { visit(current, at, masked); });
  }

  TILEWISE_INLINE void visit(const typename Shared::Stage& current, const QueryPosition& at, bool masked) {
    const ScoreGradients<Ops, C, Scores> of_tile(block_, seed_, at, wave_row_, 0);
    Scores scores, gradients;
    scores.clear();
    gradients.clear();
    keys_.multiply(scores, shared_.key_rows(), wave_row_, current.queries.for_multiply());
    if constexpr (C.wants_dk) {
      values_.multiply(gradients, shared_.value_rows(), wave_row_, current.douts.for_multiply());
    }
    of_tile.compute(scores, gradients, current, masked);
    if constexpr (C.wants_dv) {
      Ops::template accumulate<C.element>(dv_, Ops::template to_operand<C.element>(scores),
                                          current.douts.for_accumulate());
    }
    if constexpr (C.wants_dk) {
      Ops::template accumulate<C.element>(dk_, Ops::template to_operand<C.element>(gradients),
                                          current.queries.for_accumulate());
    }
  }

  /// The outputs take the stages' place, one after the other.
  TILEWISE_INLINE void finish() {
    if constexpr (C.wants_dk) write(shared_.key_out, dk_, p_.softmax_scale, p_.dk, p_.head_dim);
    if constexpr (C.wants_dv) write(shared_.value_out, dv_, 1.0f, p_.dv, p_.head_dim_v);
  }

  template <class Tile, class Sums>
  TILEWISE_INLINE void write(Tile& tile, Sums& sums, float scale, const Tensor4& to, int64_t cols) {
    if (!to.data) return;
    sums.scale_used_rows(lane_, scale, [&](int row) { return block_.used(wave_row_ + row); });
    write_rows<Ops, C>(tile, sums, wave_row_, cols,
                       [&](int row) -> uint16_t* { return block_.address_of_gradient(to, row); });
  }

  const AttentionParams& p_;
  const GridParams& grid_;
  Shared& shared_;
  Block block_;
  int lane_, wave_row_;
  DropoutSeed seed_;
  QueryStream<Ops, C, typename Shared::Stage> stream_;
  OwnRows<Ops, C, C.head_dim> keys_;
  OwnRows<Ops, C, C.head_dim_v> values_;
  KeySums dk_;
  ValueSums dv_;
};

}  // namespace tilewise::device
