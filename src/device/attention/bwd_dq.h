// dq: a block owns rows of queries (and of dout) and streams keys and values past them; where keys are selected, heads
// of one query. It has one owner and one order of summation, so dq is reproducible without atomics.
#pragma once

#include "device/attention/block_queries.h"
#include "device/attention/bwd_scores.h"
#include "device/attention/config.h"
#include "device/attention/dropout.h"
#include "device/attention/kv_pipeline.h"
#include "device/attention/seen_tiles.h"
#include "device/tile/contract.h"
#include "device/tile/mma.h"
#include "device/tile/own_rows.h"
#include "device/tile/store_rows.h"

namespace tilewise::device {

template <class Ops, auto C>
struct BwdDqShared {
  using Stage = Choose<C.selects != 0, SelectedStage<Ops, C, kBothWays, kByRows>, KvStage<Ops, C, kBothWays, kByRows>>;
  using QTile = typename OwnRows<Ops, C, C.q_type, C.head_dim>::Tile;
  using DoTile = typename OwnRows<Ops, C, C.out_type, C.head_dim_v>::Tile;
  struct OwnTiles {
    QTile q;
    DoTile dout;
  };
  /// Q and dO that stay here have their own place; where they move to registers they pass through the stages'.
  struct Streams : RowsPart<!C.rows_in_registers, OwnTiles> {
    Stage stage[C.stages];
  };
  union {
    Streams streams;
    QTile q;
    DoTile dout;
    OutTile<Ops, C.q_type, C.block_m(), C.head_dim> dq;
  };

  TILEWISE_INLINE QTile& q_tile() {
    if constexpr (C.rows_in_registers) {
      return q;
    } else {
      return streams.rows.q;
    }
  }
  TILEWISE_INLINE DoTile& dout_tile() {
    if constexpr (C.rows_in_registers) {
      return dout;
    } else {
      return streams.rows.dout;
    }
  }
};

template <TileOps Ops, auto C>
class BwdDq {
  using Machine = typename Ops::Machine;
  using Scores = Fragment<Ops, C.rows_per_wave, C.block_n>;
  using Queries = BlockQueries<C.selects ? kHeadsOfQuery : kQueriesOfHead>;
  static constexpr bool kStreams = streams_products<Ops, Scores>(C) && Scores::kSlots == 1 && !C.selects;
  using Stage = typename BwdDqShared<Ops, C>::Stage;
  using Pipeline = Choose<kStreams, SteadyKvPipeline<Ops, C, Stage>,
                          typename ChooseKvPipeline<(C.selects != 0), Ops, C, Stage>::Type>;
  static constexpr int kMostAhead = 4;  // steps: two waves a SIMD hide the rest

 public:
  using Params = typename FunctionsOf<C>::template ParamsOf<BwdDqParams>;
  using Shared = BwdDqShared<Ops, C>;

  TILEWISE_INLINE static void run(const Params& params, Shared& shared) {
    const GridPlace place = grid_place<Machine>(params.grid);
    const Sequence sequence = sequence_at<C>(params.shape, place.batch);
    const Queries queries(params.grid, sequence, place, C.block_m());
    if (queries.first_row >= queries.total_rows) return;
    BwdDq kernel(params, shared, sequence, queries);
    kernel.visit_keys();
    kernel.finish();
  }

 private:
  TILEWISE_INLINE BwdDq(const Params& params, Shared& shared, const Sequence& sequence, const Queries& queries)
      : p_(params), shared_(shared), sequence_(sequence), queries_(queries) {
    lane_ = Machine::lane();
    wave_row_ = Machine::wave() * C.rows_per_wave;
    dQ_.clear();
    TILEWISE_UNROLL
    for (int slot = 0; slot < Scores::kSlots; ++slot) {
      const int32_t row = queries_.first_row + wave_row_ + Scores::row_of_slot(lane_, slot);
      const int32_t head = queries_.head(row), query = queries_.query(row);
      row_scores_[slot] = row_score<C>(p_.score, p_.shape.num_heads_q, sequence_, queries_.batch, head, query);
      statistics_[slot] = load_statistics<Machine>(p_, sequence_, queries_.batch, head, query);
    }
    band_ = visible_band(p_.score, sequence_);
    if constexpr (C.dropout) seed_ = dropout_seed(p_.score);
  }

  TILEWISE_INLINE void visit_keys() {
    TileRange t = tiles_of_queries<C>(p_, sequence_, queries_);
    const SeenTiles<Machine, C> seen(p_, queries_.batch, queries_.first_row / C.block_m());
    t.begin = seen.first_seen(t.begin, t.end);
    if (t.begin >= t.end) return;
    pipeline_.open_for(p_, sequence_, queries_, 0);
    q_rows_.load(shared_.q_tile(), wave_row_, p_.shape.head_dim,
                 [&](int row) { return queries_.template address_to_read<C.q_type>(p_.q, sequence_, row); });
    dout_rows_.load(shared_.dout_tile(), wave_row_, p_.shape.head_dim_v,
                    [&](int row) { return queries_.template address_to_read<C.out_type>(p_.dout, sequence_, row); });
    pipeline_.begin(stage_of(t.begin), t.begin);
    int32_t turn = t.begin;
    for (int32_t tile = t.begin; tile < t.end; ++turn) {
      const int32_t next = seen.first_seen(tile + 1, t.end);
      step(turn, tile, next, next < t.end, !t.is_full(tile) || seen.hides_of(tile));
      tile = next;
    }
  }

  TILEWISE_INLINE typename Shared::Stage& stage_of(int32_t turn) { return shared_.streams.stage[turn % C.stages]; }
  TILEWISE_INLINE decltype(auto) Q() const { return q_rows_.operand(shared_.q_tile(), wave_row_); }
  TILEWISE_INLINE decltype(auto) dO() const { return dout_rows_.operand(shared_.dout_tile(), wave_row_); }

  /// One tile of keys, in its turn. The next one is under way meanwhile.
  TILEWISE_INLINE void step(int32_t turn, int32_t tile, int32_t next, bool more, bool masked) {
    typename Shared::Stage& stage = stage_of(turn);
    pipeline_.wait(stage, stage_of(turn + 1), next);
    if constexpr (kStreams) {
      pipeline_.move_to(more ? next : tile);
    } else if (more) {
      pipeline_.start(stage_of(turn + 1), next);
    }

    const auto keys = Pipeline::keys_of_columns(stage, tile);
    Scores S, dP;
    S.clear();
    dP.clear();
    if constexpr (kStreams) return stream(stage, S, dP, keys, masked);
    mma_ABt(S, Q(), stage.k);    // S = Q K^T
    mma_ABt(dP, dO(), stage.v);  // dP = dO V^T
    if constexpr (C.dropout) apply_dropout<true>(dP, p_.score, seed_, row_scores_, keys);
    score_mod_bwd(S, dP, keys, masked);             // S holds dS now
    mma_AB(dQ_, to_operand<C.k_type>(S), stage.k);  // dQ += dS K
  }

  /// The same of scores without options, by streams of products: P is made while dP is summed up.
  TILEWISE_INLINE void stream(const typename Shared::Stage& stage, Scores& S, Scores& dP, int32_t first_key,
                              bool masked) {
    using StepsAhead = typename Ops::template StepsAhead<steps_ahead(C, kMostAhead)>;
    constexpr int kPairs = Scores::kPairs;
    StepsAhead ahead, next;
    read_ahead<Ops>(ahead, stage.k);
    stream_ABt(S, Q(), stage.k, ahead, [&](int step, int steps) {
      for_share<Pipeline::parts()>(step, steps, [&](int part) { pipeline_.load_part(part); });
      if (step == steps - StepsAhead::kSteps) read_ahead<Ops>(next, stage.v);
    });
    stream_ABt(dP, dO(), stage.v, next, [&](int step, int steps) {
      for_share<kPairs>(step, steps, [&](int i) { weigh(S.pair(i), statistics_[0].lse); });
      if (step == steps - StepsAhead::kSteps) read_columns_ahead<Ops>(ahead, stage.k);
    });
    TILEWISE_UNROLL
    for (int i = 0; i < kPairs; ++i) S.pair(i) *= dP.pair(i) - statistics_[0].delta;
    if (masked) hide(S, first_key);
    stream_AB(dQ_, to_operand<C.k_type>(S), stage.k, ahead, [](int, int) {});  // dQ += dS K
  }

  /// P of a pair of scores of one row without options.
  template <class Pair>
  TILEWISE_INLINE void weigh(Pair& s, float lse) const {
    s = Scores::Accumulator::rounded_product(s, p_.score.softmax_scale) - lse;
    s[0] = Machine::exp2(s[0] * kLog2E);
    s[1] = Machine::exp2(s[1] * kLog2E);
  }

  /// dS = P * (dP - delta) * slope, in the place of S. `keys`: of the tile's columns, by key_at().
  template <class Keys>
  TILEWISE_INLINE void score_mod_bwd(Scores& S, Scores& dP, const Keys& keys, bool masked) {
    if constexpr (C.plain_scale && Scores::kPacked) {
      plain(S, dP);
      if (masked) hide(S, keys);
    } else if (masked) {
      general<true>(S, dP, keys);
    } else {
      general<false>(S, dP, keys);
    }
  }

  template <bool kMasked, class Keys>
  TILEWISE_INLINE void general(Scores& S, Scores& dP, const Keys& keys) {
    const int lane = kMasked ? Machine::not_hoisted(lane_) : lane_;
    S.for_each_pair(dP, lane, [&](int slot, int col, auto&& s, auto&& dp) {
      const int32_t key = key_at(keys, col);
      const Probability P =
          probability_of<Machine, C>(p_, row_scores_[slot], band_.seqlen_k, key, s, statistics_[slot].lse);
      bool hidden = P.hidden;
      if constexpr (kMasked) hidden |= !sees_key<Machine, C>(p_, band_, row_scores_[slot], key);
      s = hidden ? 0.0f : P.p * (dp - statistics_[slot].delta) * P.mod_slope * P.slope;
    });
  }

  /// Without options, two elements at a time.
  TILEWISE_INLINE void plain(Scores& S, Scores& dP) {
    S.for_each_packed(dP, lane_, [&](int slot, int, auto& s, auto& dp) {
      weigh(s, statistics_[slot].lse);
      s *= dp - statistics_[slot].delta;
    });
  }

  template <class Keys>
  TILEWISE_INLINE void hide(Scores& dS, const Keys& keys) {
    dS.for_each(Machine::not_hoisted(lane_), [&](int slot, int col, auto&& ds) {
      ds = sees_key<Machine, C>(p_, band_, row_scores_[slot], key_at(keys, col)) ? ds : 0.0f;
    });
  }

  TILEWISE_INLINE void finish() {
    // Hidden keys of NaN, times 0, don't reach a row that sees nothing.
    dQ_.scale_used_rows(lane_, p_.score.softmax_scale, [&](int row) {
      const int32_t r = queries_.first_row + wave_row_ + row;
      return sees_something<Machine>(p_.softmax_lse, sequence_, queries_.batch, queries_.head(r), queries_.query(r));
    });
    write_rows<C>(shared_.dq, dQ_, wave_row_, p_.shape.head_dim,
                  [&](int row) { return queries_.template address_to_write<C.q_type>(p_.dq, sequence_, row); });
  }

  const Params& p_;
  Shared& shared_;
  Sequence sequence_;
  Queries queries_;
  int lane_, wave_row_;
  Pipeline pipeline_;
  OwnRows<Ops, C, C.q_type, C.head_dim, is_crowded(C)> q_rows_;
  OwnRows<Ops, C, C.out_type, C.head_dim_v, is_crowded(C)> dout_rows_;
  RowOf<C> row_scores_[Scores::kSlots];
  QueryStatistics statistics_[Scores::kSlots];
  VisibleBand band_;
  DropoutSeed seed_;
  Fragment<Ops, C.rows_per_wave, C.head_dim> dQ_;
};

}  // namespace tilewise::device
