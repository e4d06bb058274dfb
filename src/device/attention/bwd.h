// dk, dv and, where wanted, dq in one pass: a block owns keys and streams queries past them. Waves stand in a grid,
// down the keys and across the queries of a tile (and the columns of dk and dv). They hand each other P and dS through
// shared memory, which halves what each reads of the tiles. dq's products add up in dq_accum, in no fixed order.
#pragma once

#include "device/attention/bwd_score_mod.h"
#include "device/attention/dkdv_accum.h"
#include "device/attention/dq_accum.h"
#include "device/attention/q_do_pipeline.h"
#include "device/tile/contract.h"
#include "device/tile/mma.h"
#include "device/tile/store_rows.h"

namespace tilewise::device {

template <class Ops, auto C>
struct BwdShared {
  static_assert(!Ops::kTransposedCopies, "K and dS are read both ways");
  using Stage = QDoStage<Ops, C, kBothWays, kBothWays>;
  struct Streams {
    SharedTile<C.k_type, C.block_n(), C.head_dim> k;
    SharedTile<C.v_type, C.block_n(), C.head_dim_v> v;
    Stage stage[C.stages];
    // Of the tile at hand, rounded; rows are keys.
    SharedTile<C.out_type, C.block_n(), C.block_m> P;
    SharedTile<C.q_type, C.block_n(), C.block_m> dS;
  };
  union {
    Streams streams;
    OutTile<Ops, C.k_type, C.block_n(), C.head_dim> dk;
    OutTile<Ops, C.v_type, C.block_n(), C.head_dim_v> dv;
  };
};

template <TileOps Ops, auto C>
class Bwd {
  using Machine = typename Ops::Machine;
  static constexpr int kCols = C.block_m / C.wave_cols;  // of a wave's scores
  using Scores = Fragment<Ops, C.rows_per_wave, kCols>;
  using Keys = BlockKeys<C, typename FunctionsOf<C>::template ParamsOf<BwdParams>, (C.wants_dq != 0)>;
  using Dkdv = DkdvAccum<Ops, C>;
  using Dq = DqAccum<Ops, C>;
  static constexpr bool kWantsDs = C.wants_dk || C.wants_dq;  // dv needs P alone

 public:
  using Params = typename FunctionsOf<C>::template ParamsOf<BwdParams>;
  using Shared = BwdShared<Ops, C>;

  TILEWISE_INLINE static void run(const Params& params, Shared& shared) {
    GridPlace place = grid_place<Machine>(params.grid);
    place.tile = params.grid.num_tiles - 1 - place.tile;  // the first keys have the most queries under a causal mask
    const Sequence sequence = sequence_at<C>(params.shape, place.batch);
    if (static_cast<int64_t>(place.tile) * C.block_n() >= sequence.all_k) return;
    Bwd kernel(params, shared, Keys(params, sequence, place, C.block_n()));
    kernel.visit_queries();
    kernel.finish();
  }

 private:
  TILEWISE_INLINE Bwd(const Params& params, Shared& shared, const Keys& keys)
      : p_(params),
        shared_(shared),
        keys_(keys),
        lane_(Machine::lane()),
        wave_(Machine::wave()),
        wave_row_(Dkdv::first_row(wave_)),
        part_(Dkdv::part(wave_)) {
    if constexpr (C.dropout) seed_ = dropout_seed(p_.score);
    dK_.clear();
    dV_.clear();
  }

  TILEWISE_INLINE void visit_queries() {
    const TileRange tiles = keys_.tiles(C.block_n());
    int32_t begin = 0, end = keys_.steps(tiles);
    if constexpr (C.split) {
      const int32_t share = ceil_div(end, p_.grid.num_splits);
      begin = minimum(share * keys_.place.split, end);
      end = minimum(begin + share, end);
    }
    if (begin >= end) return;
    copy_rows<Ops, C>(shared_.streams.k, p_.shape.head_dim,
                      [&](int row) { return keys_.template address_to_read<C.k_type>(p_.k, row); });
    if constexpr (kWantsDs) {
      copy_rows<Ops, C>(shared_.streams.v, p_.shape.head_dim_v,
                        [&](int row) { return keys_.template address_to_read<C.v_type>(p_.v, row); });
    }
    // Keys past the end repeat the last one: dq must not see them; their rows of dk and dv are not stored.
    const bool partial = C.wants_dq && !(keys_.used(0) && keys_.used(C.block_n() - 1));
    pipeline_.walk(
        shared_.streams.stage, keys_, tiles, begin, end,
        [&](const auto& stage, const QueryPosition& at, bool masked) { visit(stage, at, masked || partial); });
  }

  /// One tile of queries. Rows are keys: S, P, dP and dS are transposed here.
  TILEWISE_INLINE void visit(const typename Shared::Stage& stage, const QueryPosition& at, bool masked) {
    const auto& Q = stage.q.by_rows();
    const auto& dO = stage.dout.by_rows();
    auto& [k, v, stages, P, dS] = shared_.streams;
    Scores S, dP;
    S.clear();
    dP.clear();
    mma_ABt(S, part_of(k, wave_row_), part_of(Q, first_col()));                            // S^T = K Q^T
    if constexpr (kWantsDs) mma_ABt(dP, part_of(v, wave_row_), part_of(dO, first_col()));  // dP^T = V dO^T
    const BwdScoreMod<C, Scores, Keys> mod(keys_, seed_, at, wave_row_, first_col());
    mod.apply(S, dP, stage, masked);  // S holds P now, and dP holds dS
    if constexpr (C.wants_dv) store_rows(P, S, wave_row_, first_col());
    if constexpr (kWantsDs) store_rows(dS, dP, wave_row_, first_col());
    // What the wave has in registers needs no barrier: the others' turn comes while it multiplies.
    if constexpr (C.wants_dv) add(dV_, to_operand<C.out_type>(S), dO, part_.index);  // dV += P^T dO
    if constexpr (C.wants_dk) add(dK_, to_operand<C.q_type>(dP), Q, part_.index);    // dK += dS^T Q
    Machine::barrier();
    if constexpr (C.wants_dv) add_others(dV_, P, dO);
    if constexpr (C.wants_dk) add_others(dK_, dS, Q);
    if constexpr (C.wants_dq) add_to_dq_accum(at);
  }

  TILEWISE_INLINE int first_col() const { return part_.index * kCols; }

  /// gradient += A B, A being that of the waves that stand `at` across.
  template <class Gradient, class A, class B>
  TILEWISE_INLINE void add(Gradient& gradient, const A& a, const B& b, int at) {
    mma_AB(gradient, a, part_of(b, at * kCols), part_);
  }

  template <class Gradient, class A, class B>
  TILEWISE_INLINE void add_others(Gradient& gradient, const A& a, const B& b) {
    TILEWISE_UNROLL
    for (int turn = 1; turn < C.wave_cols; ++turn) {
      const int other = part_.index ^ turn;
      typename Ops::template Operand<A::kElement, C.rows_per_wave, kCols> operand;
      Ops::load_operand(operand, part_of(a, wave_row_, other * kCols));
      add(gradient, operand, b, other);
    }
  }

  /// dQ += dS K, in the workspace.
  TILEWISE_INLINE void add_to_dq_accum(const QueryPosition& at) {
    typename Dq::Sums dQ;
    dQ.clear();
    mma_AtB(dQ, part_of(shared_.streams.dS, 0, Dq::first_row(wave_)), shared_.streams.k, Dq::part(wave_));
    float* const to = Dq::of_lane(p_, keys_.place.batch, at.head, at.tile, wave_, Machine::not_hoisted(lane_));
    LaneSums<typename Dq::Sums>::for_each_four(
        dQ, [&](int offset, float (&four)[4]) { Machine::add_global(to + offset, four); });
  }

  /// The outputs take the stages' place, one after the other; parts of them go as they are.
  TILEWISE_INLINE void finish() {
    if constexpr (C.split) {
      if constexpr (C.wants_dk) store_part<kDk>(dK_);
      if constexpr (C.wants_dv) store_part<kDv>(dV_);
    } else {
      if constexpr (C.wants_dk) write(shared_.dk, dK_, p_.score.softmax_scale, p_.dk, p_.shape.head_dim);
      if constexpr (C.wants_dv) write(shared_.dv, dV_, 1.0f, p_.dv, p_.shape.head_dim_v);
    }
  }

  template <DkdvSide kSide, class Sums>
  TILEWISE_INLINE void store_part(Sums& sums) {
    LaneSums<Sums>::template store<Machine>(
        sums, Dkdv::template of_lane<kSide>(p_, keys_.place, p_.grid.num_splits, keys_.place.split, wave_, lane_));
  }

  template <class Tile, class Sums>
  TILEWISE_INLINE void write(Tile& tile, Sums& sums, float scale, const Tensor4& to, int64_t cols) {
    sums.scale_used_rows(lane_, scale, [&](int row) { return keys_.used(wave_row_ + row); });
    write_part_rows<C>(tile, sums, wave_row_, part_, cols, [&](int row) {
      return to.data ? keys_.template address_to_write<Tile::kElement>(to, row) : nullptr;
    });
  }

  const Params& p_;
  Shared& shared_;
  Keys keys_;
  int lane_, wave_, wave_row_;
  typename Dkdv::Part part_;  // across: of the tile's queries, and of the columns of dk and dv
  DropoutSeed seed_;
  QDoPipeline<Ops, C, typename Shared::Stage> pipeline_;
  typename Dkdv::template Sums<kDk> dK_;
  typename Dkdv::template Sums<kDv> dV_;
};

}  // namespace tilewise::device
