// dk, dv and, where wanted, dq in one pass: a block owns keys and streams queries past them. Waves stand in a
// grid: down the keys, and across the queries of a tile (or the columns of dk and dv). They hand each
// other weights and score gradients through shared memory, which halves what each reads of the tiles;
// dq's products add up in global memory (query_sums.h), in no fixed order.
#pragma once

#include "device/portable/key_sums.h"
#include "device/portable/query_stream.h"
#include "device/portable/query_sums.h"
#include "device/portable/score_gradients.h"
#include "device/portable/store_rows.h"

namespace tilewise::device {

template <class Ops, KernelConfig C>
struct FusedGradientShared {
  static_assert(!Ops::kTransposedCopies, "keys and score gradients are read both ways");
  static constexpr int kBlockRows = KeySumsLayout<Ops, C>::kBlockRows;
  using Stage = QueryStage<Ops, C, kForBoth, kForBoth>;
  using Weights = SharedTile<kBlockRows, C.tile_cols>;
  struct Streams {
    SharedTile<kBlockRows, C.head_dim> keys;
    SharedTile<kBlockRows, C.head_dim_v> values;
    Stage stage[C.stages];
    Weights weights, gradients;  // of the tile at hand, rounded
  };
  union {
    Streams streams;
    OutTile<typename Ops::Layout, kBlockRows, C.head_dim> key_out;
    OutTile<typename Ops::Layout, kBlockRows, C.head_dim_v> value_out;
  };
};

template <class Ops, KernelConfig C>
class FusedGradientKernel {
  using Machine = typename Ops::Machine;
  using Shared = FusedGradientShared<Ops, C>;
  static constexpr int kCols = C.tile_cols / C.wave_cols;  // of a wave's scores
  using Scores = typename Ops::template Accumulators<C.rows_per_wave, kCols>;
  using Operand = typename Ops::template RowOperand<C.rows_per_wave, kCols>;
  using Layout = KeySumsLayout<Ops, C>;
  using KeySums = typename Layout::template Sums<kKeySide>;
  using ValueSums = typename Layout::template Sums<kValueSide>;
  using QuerySums = QuerySumsLayout<Ops, C>;
  static constexpr bool kWantsGradients = C.wants_dk || C.wants_dq;  // of scores; dv needs the weights alone

 public:
  TILEWISE_INLINE static void run(const KernelParams& params, Shared& shared) {
    GridPlace place = grid_place<Machine>(params.grid);
    place.tile = params.grid.num_tiles - 1 - place.tile;  // the first keys have the most queries under a causal mask
    const Sequence sequence = sequence_at<C>(params.call, place.batch);
    if (static_cast<int64_t>(place.tile) * Shared::kBlockRows >= sequence.all_k) return;
    FusedGradientKernel kernel(params, shared, KeyBlock<C>(params.call, sequence, place, Shared::kBlockRows));
    kernel.visit_queries();
    kernel.finish();
  }

 private:
  TILEWISE_INLINE FusedGradientKernel(const KernelParams& params, Shared& shared, const KeyBlock<C>& block)
      : p_(params.call),
        grid_(params.grid),
        shared_(shared),
        block_(block),
        lane_(Machine::lane()),
        wave_(Machine::wave()),
        wave_row_(Layout::first_row(wave_)),
        part_(Layout::part(wave_)) {
    if constexpr (C.dropout) seed_ = dropout_seed(p_);
    dk_.clear();
    dv_.clear();
  }

  TILEWISE_INLINE void visit_queries() {
    const StreamedTiles tiles = block_.tiles(Shared::kBlockRows);
    int32_t begin = 0, end = block_.steps(tiles);
    if constexpr (C.split) {
      const int32_t share = ceil_div(end, grid_.num_splits);
      begin = minimum(share * block_.place.split, end);
      end = minimum(begin + share, end);
    }
    if (begin >= end) return;
    copy_rows<Ops, C>(shared_.streams.keys, p_.head_dim, [&](int row) { return block_.address_of_key(p_.k, row); });
    if constexpr (kWantsGradients) {
      copy_rows<Ops, C>(shared_.streams.values, p_.head_dim_v,
                        [&](int row) { return block_.address_of_key(p_.v, row); });
    }
    // Keys past the end repeat the last one: dq must not see them; their rows of dk and dv are not stored.
    const bool partial = C.wants_dq && !(block_.used(0) && block_.used(Shared::kBlockRows - 1));
    stream_.walk(
        shared_.streams.stage, block_, grid_, tiles, begin, end,
        [&](const auto& current, const QueryPosition& at, bool masked) { visit(current, at, masked || partial); });
  }

  TILEWISE_INLINE void visit(const typename Shared::Stage& current, const QueryPosition& at, bool masked) {
    const auto& queries = current.queries.for_multiply();
    const auto& douts = current.douts.for_multiply();
    auto& streams = shared_.streams;
    Scores scores, gradients;
    scores.clear();
    gradients.clear();
    Ops::template multiply<C.element>(scores, streams.keys, wave_row_, queries, first_col());
    if constexpr (kWantsGradients) {
      Ops::template multiply<C.element>(gradients, streams.values, wave_row_, douts, first_col());
    }
    const ScoreGradients<Ops, C, Scores> of_tile(block_, seed_, at, wave_row_, first_col());
    of_tile.compute(scores, gradients, current, masked);
    if constexpr (C.wants_dv) store_rows<Ops, C>(streams.weights, scores, wave_row_, first_col());
    if constexpr (kWantsGradients) store_rows<Ops, C>(streams.gradients, gradients, wave_row_, first_col());
    // What the wave has in registers needs no barrier: the others' turn comes while it multiplies.
    if constexpr (C.wants_dv) add(dv_, Ops::template to_operand<C.element>(scores), douts, part_.index);
    if constexpr (C.wants_dk) add(dk_, Ops::template to_operand<C.element>(gradients), queries, part_.index);
    Machine::barrier();
    if constexpr (C.wants_dv) add_others(dv_, streams.weights, douts);
    if constexpr (C.wants_dk) add_others(dk_, streams.gradients, queries);
    if constexpr (C.wants_dq) add_query_sums(at);
  }

  TILEWISE_INLINE int first_col() const { return part_.index * kCols; }

  /// sums += operand * tile, the operand being that of the waves that stand `at` across.
  template <class Sums, class Tile>
  TILEWISE_INLINE void add(Sums& sums, const Operand& operand, const Tile& tile, int at) {
    Ops::template accumulate<C.element>(sums, operand, tile, at * kCols, part_);
  }

  template <class Sums, class Tile>
  TILEWISE_INLINE void add_others(Sums& sums, const typename Shared::Weights& weights, const Tile& tile) {
    TILEWISE_UNROLL
    for (int turn = 1; turn < C.wave_cols; ++turn) {
      const int other = part_.index ^ turn;
      Operand operand;
      Ops::load_rows(operand, weights, wave_row_, other * kCols);
      add(sums, operand, tile, other);
    }
  }

  TILEWISE_INLINE void add_query_sums(const QueryPosition& at) {
    typename QuerySums::Sums sums;
    sums.clear();
    Ops::template accumulate_transposed<C.element>(sums, shared_.streams.gradients, QuerySums::first_row(wave_),
                                                   shared_.streams.keys, QuerySums::part(wave_));
    float* const to =
        QuerySums::of_lane(p_, grid_, block_.place.batch, at.head, at.tile, wave_, Machine::not_hoisted(lane_));
    LaneSums<typename QuerySums::Sums>::for_each_four(
        sums, [&](int offset, float (&four)[4]) { Machine::add_global(to + offset, four); });
  }

  /// The outputs take the stages' place, one after the other; parts of them go as they are.
  TILEWISE_INLINE void finish() {
    if constexpr (C.split) {
      if constexpr (C.wants_dk) store_part<kKeySide>(dk_);
      if constexpr (C.wants_dv) store_part<kValueSide>(dv_);
    } else {
      if constexpr (C.wants_dk) write(shared_.key_out, dk_, p_.softmax_scale, p_.dk, p_.head_dim);
      if constexpr (C.wants_dv) write(shared_.value_out, dv_, 1.0f, p_.dv, p_.head_dim_v);
    }
  }

  template <KeySide kSide, class Sums>
  TILEWISE_INLINE void store_part(Sums& sums) {
    LaneSums<Sums>::template store<Machine>(
        sums, Layout::template of_lane<kSide>(grid_, block_.place, block_.place.split, wave_, lane_));
  }

  template <class Tile, class Sums>
  TILEWISE_INLINE void write(Tile& tile, Sums& sums, float scale, const Tensor4& to, int64_t cols) {
    sums.scale_used_rows(lane_, scale, [&](int row) { return block_.used(wave_row_ + row); });
    write_part_rows<Ops, C, Shared::kBlockRows>(tile, sums, wave_row_, part_, cols, [&](int row) -> uint16_t* {
      return to.data ? block_.address_of_gradient(to, row) : nullptr;
    });
  }

  const AttentionParams& p_;
  const GridParams& grid_;
  Shared& shared_;
  KeyBlock<C> block_;
  int lane_, wave_, wave_row_;
  typename Layout::Part part_;  // across: of the tile's queries, and of the columns of dk and dv
  DropoutSeed seed_;
  QueryStream<Ops, C, typename Shared::Stage> stream_;
  KeySums dk_;
  ValueSums dv_;
};

}  // namespace tilewise::device
