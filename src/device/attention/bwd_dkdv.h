// dk and dv: a block owns rows of keys and values and streams queries and their gradients past them,
// head after head of the group, so that dk and dv have one owner and one order of summation. Where keys are selected it
// owns a run of one query's, streams the heads of that query, and adds to sums of each key.
#pragma once

#include "device/attention/block_keys.h"
#include "device/attention/bwd_score_mod.h"
#include "device/attention/config.h"
#include "device/attention/q_do_pipeline.h"
#include "device/attention/selected_block.h"
#include "device/attention/selected_sums.h"
#include "device/tile/contract.h"
#include "device/tile/mma.h"
#include "device/tile/own_rows.h"
#include "device/tile/store_rows.h"

namespace tilewise::device {

template <class Ops, auto C>
struct BwdDkdvShared : TileKeys<C.selects != 0, C.block_n()> {
  static constexpr int kQUse = C.wants_dk ? kBothWays : kByRows;
  static constexpr int kDoUse = !C.wants_dk ? kByColumns : C.wants_dv ? kBothWays : kByRows;
  using Stage = QDoStage<Ops, C, kQUse, kDoUse>;
  using KTile = typename OwnRows<Ops, C, C.k_type, C.head_dim>::Tile;
  using VTile = typename OwnRows<Ops, C, C.v_type, C.head_dim_v>::Tile;
  struct OwnTiles {
    KTile k;
    VTile v;
  };
  /// K and V that stay here have their own place; where they move to registers they pass through the stages'.
  struct Streams : RowsPart<!C.rows_in_registers, OwnTiles> {
    Stage stage[C.stages];
  };
  union {
    Streams streams;
    KTile k;
    VTile v;
    OutTile<Ops, C.k_type, C.block_n(), C.head_dim> dk;
    OutTile<Ops, C.v_type, C.block_n(), C.head_dim_v> dv;
  };

  TILEWISE_INLINE KTile& k_tile() {
    if constexpr (C.rows_in_registers) {
      return k;
    } else {
      return streams.rows.k;
    }
  }
  TILEWISE_INLINE VTile& v_tile() {
    if constexpr (C.rows_in_registers) {
      return v;
    } else {
      return streams.rows.v;
    }
  }
};

template <TileOps Ops, auto C>
class BwdDkdv {
  using Machine = typename Ops::Machine;
  using Scores = Fragment<Ops, C.rows_per_wave, C.block_m>;
  static constexpr bool kStreams = streams_products<Ops, Scores>(C) && C.wants_dk && C.wants_dv;
  using Pipeline = QDoPipeline<Ops, C, typename BwdDkdvShared<Ops, C>::Stage, kStreams>;

 public:
  using Params = typename FunctionsOf<C>::template ParamsOf<BwdDkdvParams>;
  using Shared = BwdDkdvShared<Ops, C>;
  using Keys = Choose<C.selects != 0, SelectedBlockKeys<C, Params, Machine>, BlockKeys<C, Params, false>>;

  TILEWISE_INLINE static void run(const Params& params, Shared& shared) {
    const GridPlace place = grid_place<Machine>(params.grid);
    const Sequence sequence = sequence_at<C>(params.shape, place.batch);
    if constexpr (C.selects) {
      BwdDkdv kernel(params, shared, Keys(params, sequence, place, shared.selected));
      if (kernel.visit_queries()) kernel.add_sums();
    } else {
      if (static_cast<int64_t>(place.tile) * C.block_n() >= sequence.all_k) return;
      BwdDkdv kernel(params, shared, Keys(params, sequence, place, C.block_n()));
      kernel.visit_queries();
      kernel.finish();
    }
  }

 private:
  TILEWISE_INLINE BwdDkdv(const Params& params, Shared& shared, const Keys& keys)
      : p_(params), shared_(shared), keys_(keys), lane_(Machine::lane()), wave_row_(Machine::wave() * C.rows_per_wave) {
    if constexpr (C.dropout) seed_ = dropout_seed(p_.score);
    dK_.clear();
    dV_.clear();
  }

  /// Whether there are any.
  TILEWISE_INLINE bool visit_queries() {
    const TileRange tiles = keys_.tiles(C.block_n());
    if (tiles.count() == 0) return false;
    k_rows_.load(shared_.k_tile(), wave_row_, p_.shape.head_dim,
                 [&](int row) { return keys_.template address_to_read<C.k_type>(p_.k, row); });
    if constexpr (C.wants_dk) {
      v_rows_.load(shared_.v_tile(), wave_row_, p_.shape.head_dim_v,
                   [&](int row) { return keys_.template address_to_read<C.v_type>(p_.v, row); });
    }
    pipeline_.walk(shared_.streams.stage, keys_, tiles, 0, keys_.steps(tiles),
                   [&](const auto& stage, const QueryPosition& at, bool masked) { visit(stage, at, masked); });
    return true;
  }

  TILEWISE_INLINE decltype(auto) K() const { return k_rows_.operand(shared_.k_tile(), wave_row_); }
  TILEWISE_INLINE decltype(auto) V() const { return v_rows_.operand(shared_.v_tile(), wave_row_); }

  /// One tile of queries. Rows are keys: S, P, dP and dS are transposed here.
  TILEWISE_INLINE void visit(const typename Shared::Stage& stage, const QueryPosition& at, bool masked) {
    const BwdScoreMod<C, Scores, Keys> mod(keys_, seed_, at, wave_row_, 0);
    if constexpr (kStreams) return stream(stage, mod, masked);
    Scores S, dP;
    S.clear();
    dP.clear();
    mma_ABt(S, K(), stage.q);                                                      // S^T = K Q^T
    if constexpr (C.wants_dk) mma_ABt(dP, V(), stage.dout);                        // dP^T = V dO^T
    mod.apply(S, dP, stage, masked);                                               // S holds P now, and dP holds dS
    if constexpr (C.wants_dv) mma_AB(dV_, to_operand<C.out_type>(S), stage.dout);  // dV += P^T dO
    if constexpr (C.wants_dk) mma_AB(dK_, to_operand<C.q_type>(dP), stage.q);      // dK += dS^T Q
  }

  /// The same of scores without options, by streams of products: a wave is alone with its SIMD, so that what it does
  /// beside them is all that the vector unit does meanwhile. P is made while dP is summed up, and dS while dV is.
  template <class Mod>
  TILEWISE_INLINE void stream(const typename Shared::Stage& stage, const Mod& mod, bool masked) {
    using StepsAhead = typename Ops::template StepsAhead<steps_ahead(C, Ops::kStepsAhead)>;
    constexpr int kPairs = Scores::kPairs;
    Scores S, dP;
    S.clear();
    dP.clear();
    TwoStatistics two[kPairs];
    StepsAhead ahead, next;
    read_ahead<Ops>(ahead, stage.q);
    stream_ABt(S, K(), stage.q, ahead, [&](int step, int steps) {
      for_share<Pipeline::parts()>(step, steps, [&](int part) { pipeline_.load_part(part); });
      for_share<kPairs>(step, steps, [&](int i) { two[i] = stage.two_statistics(S.column_of_pair(lane_, i)); });
      if (step == steps - StepsAhead::kSteps) read_ahead<Ops>(next, stage.dout);
    });
    stream_ABt(dP, V(), stage.dout, next, [&](int step, int steps) {
      for_share<kPairs>(step, steps, [&](int i) { mod.weigh(S.pair(i), two[i]); });
      if (step == steps - StepsAhead::kSteps) read_columns_ahead<Ops>(ahead, stage.dout);
    });
    if (masked) mod.hide(S, dP);
    const auto P = to_operand<C.out_type>(S);
    stream_AB(dV_, P, stage.dout, ahead, [&](int step, int steps) {
      for_share<kPairs>(step, steps, [&](int i) { mod.differentiate(S.pair(i), dP.pair(i), two[i]); });
      dP.for_each_tile([](auto& tile) { compute_by_here<Machine>(tile); });
      if (step == steps - StepsAhead::kSteps) read_columns_ahead<Ops>(next, stage.q);
    });
    if (masked) mod.hide(S, dP);
    stream_AB(dK_, to_operand<C.q_type>(dP), stage.q, next, [](int, int) {});
  }

  /// dk's without its scale.
  TILEWISE_INLINE void add_sums() {
    const auto add = [&](auto& gradient, float* sums, int64_t a_row) {
      SelectedSums<Ops>::add(gradient, lane_, [&](int row) -> float* {
        return keys_.used(wave_row_ + row) ? sums + keys_.sums_row(wave_row_ + row) * a_row : nullptr;
      });
    };
    if constexpr (C.wants_dk) add(dK_, p_.dk_accum, p_.dk_accum_a_row);
    if constexpr (C.wants_dv) add(dV_, p_.dv_accum, p_.dv_accum_a_row);
  }

  /// The outputs take the stages' place, one after the other.
  TILEWISE_INLINE void finish() {
    if constexpr (C.wants_dk) write(shared_.dk, dK_, p_.score.softmax_scale, p_.dk, p_.shape.head_dim);
    if constexpr (C.wants_dv) write(shared_.dv, dV_, 1.0f, p_.dv, p_.shape.head_dim_v);
  }

  template <class Tile, class Gradient>
  TILEWISE_INLINE void write(Tile& tile, Gradient& gradient, float scale, const Tensor4& to, int64_t cols) {
    if (!to.data) return;
    gradient.scale_used_rows(lane_, scale, [&](int row) { return keys_.used(wave_row_ + row); });
    write_rows<C>(tile, gradient, wave_row_, cols,
                  [&](int row) { return keys_.template address_to_write<Tile::kElement>(to, row); });
  }

  const Params& p_;
  Shared& shared_;
  Keys keys_;
  int lane_, wave_row_;
  DropoutSeed seed_;
  Pipeline pipeline_;
  OwnRows<Ops, C, C.k_type, C.head_dim, is_crowded(C)> k_rows_;
  OwnRows<Ops, C, C.v_type, C.head_dim_v, is_crowded(C) || has_wide_sums<Ops>(C)> v_rows_;
  Fragment<Ops, C.rows_per_wave, C.head_dim> dK_;
  Fragment<Ops, C.rows_per_wave, C.head_dim_v> dV_;
};

}  // namespace tilewise::device
