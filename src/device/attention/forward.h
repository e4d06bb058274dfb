// The forward kernel: a block owns rows of queries and streams tiles of keys and values past them,
// with an online softmax. Every machine runs this body; what differs stands in its ops_*.h.
#pragma once

#include "device/attention/block_queries.h"
#include "device/attention/config.h"
#include "device/attention/dropout.h"
#include "device/attention/forward_shared.h"
#include "device/attention/kv_pipeline.h"
#include "device/attention/scores.h"
#include "device/attention/seen_tiles.h"
#include "device/attention/sink.h"
#include "device/tile/contract.h"
#include "device/tile/mma.h"
#include "device/tile/softmax.h"
#include "device/tile/store_rows.h"

namespace tilewise::device {

template <TileOps Ops, auto C, class Call = AttentionCall>
class Forward {
  using Machine = typename Ops::Machine;
  using Scores = Fragment<Ops, C.rows_per_wave, C.block_n>;
  using Out = typename Call::template Out<Ops, C>;
  using Queries = BlockQueries<block_rows(C)>;
  using Columns = typename Call::template Columns<C>;
  using Attended = typename Call::AttendedSequence;
  static constexpr bool kLate = Call::template adds_keys<C>();
  static constexpr bool kSchedules = Call::template schedules<C>();
  static constexpr bool kJoinsSink = C.sink && (!C.split || kSchedules);

 public:
  using Params = typename FunctionsOf<C>::template ParamsOf<typename Call::Forward>;
  using Shared = ForwardShared<Ops, C, Call>;
  using Pipeline = typename Call::template Pipeline<Ops, C, typename Shared::Stage>;

  TILEWISE_INLINE static void run(const Params& params, Shared& shared) {
    if constexpr (C.split) let_next_step_begin<Machine>();
    attend(params, shared);
    // Who waits for this step relies on those before it, too.
    if constexpr (Call::kFollows) wait_for_step_before<Machine>();
  }

 private:
  TILEWISE_INLINE static void attend(const Params& params, Shared& shared) {
    GridPlace place = grid_place<Machine>(params.grid);
    const KeyPart part = Call::template part_at<Machine, C>(params, place);
    const Columns columns(place);
    if (kSchedules && part.count == 0) return;
    const Attended sequence = Call::template sequence_at<C>(params, place.batch);
    const Queries queries(params.grid, sequence, place, C.block_m());
    if (!Call::template appends<C>() && queries.first_row >= queries.total_rows) return;
    Forward kernel(params, shared, sequence, queries, columns, part);
    kernel.visit_keys();
    kernel.finish();
  }

  TILEWISE_INLINE Forward(const Params& params, Shared& shared, const Attended& sequence, const Queries& queries,
                          const Columns& columns, const KeyPart& part)
      : p_(params), shared_(shared), sequence_(sequence), queries_(queries), columns_(columns), part_(part) {
    lane_ = Machine::lane();
    wave_row_ = Machine::wave() * C.rows_per_wave;
    if constexpr (kLate) {
      load_queries([] {});
      pipeline_.begin_early(stage_of(0), p_, queries_, columns_, part_.number);
      Call::template add_keys<C>(sequence_, p_, queries_.batch);
    }
    O_.clear();
    softmax_.clear();
    TILEWISE_UNROLL
    for (int slot = 0; slot < Scores::kSlots; ++slot) {
      const int32_t row = row_of_slot(slot);
      row_scores_[slot] = row_score<C>(p_.score, p_.shape.num_heads_q, sequence_, queries_.batch, queries_.head(row),
                                       queries_.query(row));
    }
    band_ = visible_band(p_.score, sequence_);
    if constexpr (C.dropout) seed_ = dropout_seed(p_.score);
  }

  TILEWISE_INLINE int32_t row_of_slot(int slot) const {
    return queries_.first_row + wave_row_ + Scores::row_of_slot(lane_, slot);
  }

  /// Of this block's part of the keys.
  TILEWISE_INLINE TileRange tiles() const {
    TileRange t = tiles_of_queries<C>(p_, sequence_, queries_);
    if constexpr (kLate) {
      t.begin += part_.number, t.step = part_.count;
      return t;
    }
    if constexpr (C.split) {
      const int32_t each = tiles_a_part(t.end - t.begin);
      const int32_t begin = minimum(t.begin + each * part_.number, t.end);
      t.end = minimum(begin + each, t.end);
      t.begin = begin;
    }
    t.full_begin = minimum(maximum(t.full_begin, t.begin), t.end);
    t.full_end = maximum(minimum(t.full_end, t.end), t.full_begin);
    return t;
  }

  TILEWISE_INLINE int32_t tiles_a_part(int32_t tiles) const {
    if constexpr (kSchedules) return ceil_div(tiles, part_.count);
    return divide(tiles + p_.grid.num_splits - 1, p_.grid.by_splits);
  }

  TILEWISE_INLINE void visit_keys() {
    constexpr bool kAppends = Call::template appends<C>();
    TileRange t = tiles();
    const SeenTiles<Machine, C> seen(p_, queries_.batch, queries_.first_row / C.block_m());
    const KeyRange new_keys = keys_to_append(t);  // of tiles that are not seen, too
    t.begin = seen.first_seen(t.begin, t.end);
    const auto append = [&] {
      if constexpr (kAppends) Call::template append<Ops, C>(p_, sequence_, queries_, new_keys);
    };
    if (t.begin >= t.end) {
      if constexpr (kLate) Ops::finish_copies();
      return append();
    }
    if constexpr (C.staggered) {
      visit_staggered(t);
    } else {
      visit_in_turn(t, seen, new_keys, append);
    }
  }

  template <class Append>
  TILEWISE_INLINE void visit_in_turn(const TileRange& t, const SeenTiles<Machine, C>& seen, const KeyRange& new_keys,
                                     const Append& append) {
    int32_t turn = kLate ? 0 : t.begin;
    if constexpr (kLate) {
      pipeline_.begin_late(stage_of(turn), p_, sequence_, queries_, part_.number, t.begin);
    } else {
      load_first_tile(t, new_keys, append);
    }
    // Whether to mask is a branch of one loop: of two loops' bodies the registers do not fit.
    for (int32_t tile = t.begin; tile < t.end; ++turn) {
      const int32_t next = seen.first_seen(tile + t.step, t.end);
      step(turn, tile, next, next < t.end, !t.is_full(tile) || seen.hides_of(tile));
      tile = next;
    }
  }

  using StaggeredPipeline = StaggeredKvPipeline<Ops, C, typename Shared::Stage>;
  static constexpr bool kTakesGroups = !has_few_registers<Ops>(C);  // else the loop has room for one turn

  /// The second half of the waves is a barrier behind the first: one half multiplies (P V of its last tile and Q K^T of
  /// the next) while the other weighs scores, so that a SIMD's matrix unit and its vector unit both have work.
  TILEWISE_INLINE void visit_staggered(const TileRange& t) {
    // Where registers are few, reads are no further ahead than they must be.
    constexpr int kMostAhead = has_few_registers<Ops>(C)         ? Ops::kFewestAhead
                               : C.head_dim + C.head_dim_v > 256 ? 4
                                                                 : Ops::kStepsAhead;
    using StepsAhead = typename Ops::template StepsAhead<minimum(kMostAhead, Ops::kStepsAhead)>;
    StaggeredPipeline pipeline(shared_.streams.stage);
    pipeline.open_for(p_, sequence_, queries_);
    load_queries([] {});
    // Tiles that are more than whole groups of as many as there are stages come first: the loop takes groups.
    const auto count = static_cast<uint32_t>(t.end - t.begin);
    const int first_turn = kTakesGroups ? static_cast<int>((C.stages - count % C.stages) % C.stages) : 0;
    pipeline.begin(first_turn, t.begin);
    const bool is_late = Machine::wave() >= C.waves / 2;
    if (is_late) Machine::barrier();
    set_priority<Machine, 1>();
    StepsAhead keys_ahead;
    read_ahead<Ops>(keys_ahead, pipeline.keys(first_turn));
    int32_t tile = t.begin;
    const auto take = [&](int turn) { take_turn(turn, tile++, t, keys_ahead, pipeline); };
    if constexpr (kTakesGroups) {
      for_each_index<1, C.stages>([&](auto turn) {
        constexpr int kTurn = decltype(turn)::value;
        if (first_turn != 0 && kTurn >= first_turn) take(kTurn);
      });
      while (tile < t.end) for_each_index<0, C.stages>([&](auto turn) { take(decltype(turn)::value); });
    } else {
      for (int turn = 0; tile < t.end; turn = turn + 1 < C.stages ? turn + 1 : 0) take(turn);
    }
    pipeline.finish();
    if (!is_late) Machine::barrier();
  }

  /// `turn`: of a group. Known to the compiler, the places of its stages cost nothing.
  template <class Ahead>
  TILEWISE_INLINE void take_turn(int turn, int32_t tile, const TileRange& t, Ahead& keys_ahead,
                                 StaggeredPipeline& pipeline) {
    Scores S;
    S.clear();
    multiply_keys(S, turn, keys_ahead, pipeline, tile);
    set_priority<Machine, 0>();
    // is_full() in one comparison: tiles() has put its ends in order.
    const bool full = static_cast<uint32_t>(tile - t.full_begin) < static_cast<uint32_t>(t.full_end - t.full_begin);
    score_mod<C>(S, p_, row_scores_, band_, tile * C.block_n, !full);
    softmax_.update(S, O_, scale());
    const auto P = to_operand<C.v_type>(S);
    keep_order<Machine>();
    Machine::barrier();
    keep_order<Machine>();
    set_priority<Machine, 1>();
    Ahead values_ahead;
    read_columns_ahead<Ops>(values_ahead, pipeline.values(turn));
    stream_AB(O_, P, pipeline.values(turn), values_ahead, [&](int step, int steps) {
      if (step == steps - Ahead::kSteps) read_ahead<Ops>(keys_ahead, pipeline.keys(turn + 1));
    });
  }

  /// S = Q K^T. The next tiles get to their places meanwhile; the barrier comes once this wave has read all keys, so
  /// that the other half reads its first values while products are left.
  template <class Ahead>
  TILEWISE_INLINE void multiply_keys(Scores& S, int turn, Ahead& ahead, StaggeredPipeline& pipeline, int32_t tile) {
    stream_ABt(S, Q(), pipeline.keys(turn), ahead, [&](int step, int steps) {
      const int last = steps - 1 - Ahead::kSteps / 2;
      TILEWISE_UNROLL
      for (int part = 0; part < StaggeredPipeline::parts(); ++part) {
        if (step == part * (last + 1) / StaggeredPipeline::parts()) pipeline.pass_on(part, turn, tile);
      }
      if (step == last) {
        pipeline.finish_parts(turn, tile);
        Machine::barrier();
      }
    });
  }

  /// With the queries.
  template <class Append>
  TILEWISE_INLINE void load_first_tile(const TileRange& t, const KeyRange& new_keys, const Append& append) {
    constexpr bool kAppends = Call::template appends<C>();
    pipeline_.open_for(p_, sequence_, queries_, columns_);
    // Queries that change take their time, and new keys: the first tile is under way meanwhile, where it has a place
    // and no new key.
    constexpr bool kKeysFirst = (kAppends || Call::template changes_queries<C>()) && !C.rows_in_registers;
    bool keys_first = kKeysFirst;
    if constexpr (kKeysFirst && kAppends)
      keys_first = new_keys.begin >= new_keys.end || !pipeline_.has_new_key(t.begin);
    if (keys_first) pipeline_.begin(stage_of(t.begin), t.begin);
    load_queries(append);
    if (!keys_first) pipeline_.begin(stage_of(t.begin), t.begin);
  }

  template <class Meanwhile>
  TILEWISE_INLINE void load_queries(const Meanwhile& meanwhile) {
    Call::template load_queries<Ops, C>(q_rows_, shared_.q_tile(), wave_row_, p_, sequence_, queries_, meanwhile);
  }

  /// The new keys that this block's tiles hold, by their numbers. The first and the last part of the keys have those,
  /// too, that no query sees.
  TILEWISE_INLINE KeyRange keys_to_append(const TileRange& t) const {
    if constexpr (!Call::template appends<C>()) {
      return {0, 0};
    } else {
      constexpr int64_t kMany = int64_t{1} << 62;
      const bool first = !C.split || part_.number == 0, last = !C.split || part_.number == part_.count - 1;
      return Call::new_keys(sequence_,
                            {first ? -kMany : int64_t{t.begin} * C.block_n, last ? kMany : int64_t{t.end} * C.block_n});
    }
  }

  TILEWISE_INLINE typename Shared::Stage& stage_of(int32_t turn) { return shared_.streams.stage[turn % C.stages]; }
  TILEWISE_INLINE decltype(auto) Q() const { return q_rows_.operand(shared_.q_tile(), wave_row_); }

  /// Tiles that wait in registers are asked for once the scores have left theirs, where those are few.
  static constexpr bool kLateStart = has_few_registers<Ops>(C), kByHalves = Pipeline::kStartsByHalves;

  /// One tile of keys, in its turn. The next one is under way meanwhile.
  TILEWISE_INLINE void step(int32_t turn, int32_t tile, int32_t next, bool more, bool masked) {
    typename Shared::Stage& stage = stage_of(turn);
    pipeline_.wait(stage, stage_of(turn + 1), next);
    if (!kLateStart && !kByHalves && more) pipeline_.start(stage_of(turn + 1), next);
    if (C.idle_waves && queries_.first_row + wave_row_ >= queries_.total_rows) {
      if (kLateStart && more) pipeline_.start(stage_of(turn + 1), next);
      return;
    }

    const auto keys = pipeline_.keys_of_columns(stage, tile);
    Scores S;
    S.clear();
    mma_ABt(S, Q(), pipeline_.keys(stage));  // S = Q K^T
    if constexpr (kByHalves) {
      keep_order<Machine>();
      pipeline_.start_keys();
    }
    pipeline_.scale_scores(S, stage);
    score_mod<C>(S, p_, row_scores_, band_, keys, masked);  // scale, softcap, bias, functions, mask
    softmax_.update(S, O_, scale());                        // S holds P now, O is rescaled
    if constexpr (C.dropout) apply_dropout<false>(S, p_.score, seed_, row_scores_, keys);
    pipeline_.scale_weights(S, stage);
    const auto P = to_operand<C.v_type>(S);
    if (kLateStart && !kByHalves && more) pipeline_.start(stage_of(turn + 1), next);
    mma_AB(O_, P, pipeline_.values(stage));  // O += P V
    if constexpr (kByHalves) {
      keep_order<Machine>();
      pipeline_.start_values();
    }
    if constexpr (Pipeline::kTwoTerms) {
      Machine::wave_sync();  // V is read again: what is left of the scores has no registers to spare for it
      keep_rounding_errors<C.v_type>(S);
      mma_AB(O_, to_operand<C.v_type>(S), stage.v);
    }
  }

  /// What scores are multiplied by to be in natural units, and on their way into exp2.
  TILEWISE_INLINE float natural_scale() const {
    return C.plain_scale ? uniform<Machine>(p_.score.softmax_scale) : 1.0f;
  }
  TILEWISE_INLINE float scale() const { return natural_scale() * kLog2E; }

  /// Divides by the sum, joins the sink, and writes out and lse. The largest score of a row that sees something has a
  /// weight far from 0, and NaN among its scores makes the sum a NaN: a sum of 0 is that of a row that sees nothing.
  TILEWISE_INLINE void finish() {
    softmax_.reduce_row_sum();
    typename Out::PerRow factor;
    TILEWISE_UNROLL
    for (int slot = 0; slot < Scores::kSlots; ++slot) {
      const int32_t row = row_of_slot(slot);
      const float row_sum = softmax_.row_sum[slot];
      const bool used = row < queries_.used_rows, seen = row_sum != 0.0f;
      RowLse lse = softmax_.lse(slot, natural_scale());
      factor[slot] = used && seen ? Machine::reciprocal(row_sum) : 0.0f;
      if (kJoinsSink && is_whole()) {
        const int32_t head = queries_.head(minimum(row, queries_.total_rows - 1));
        factor[slot] *= lse.join_sink<Machine>(load_sink<Machine, C.q_type>(p_.sink, head), seen);
        // A sink that takes all leaves a row its NaN, and one that is a NaN makes the row one.
        if (factor[slot] < kLeastNormal) factor[slot] = kLeastNormal;
        if (!used || !seen) factor[slot] = 0.0f;
      }
      if (!used) lse = {-kInfinity, 0.0f};
      if constexpr (C.dropout) factor[slot] *= p_.score.dropout_scale;
      if (row < queries_.total_rows && owns_row(slot) && columns_.first() == 0) store_lse(row, lse);
    }
    pipeline_.finish_out(O_);
    O_.scale_or_clear_rows(factor);
    if constexpr (Out::kJoinsColumns) Ops::join_columns(O_);
    if (!is_whole()) {
      store_out_accum();
    } else {
      write_rows<C>(shared_.out, O_, wave_row_, columns_.count(p_.shape), [&](int row) {
        auto* const to = queries_.template address_to_write<C.out_type>(p_.out, sequence_, row);
        return to ? to + columns_.first() : to;
      });
    }
  }

  /// Whether a block sees all of its sequence's keys, so that what it leaves is the result.
  TILEWISE_INLINE bool is_whole() const { return !C.split || (kSchedules && part_.count == 1); }

  /// One of the lanes that hold parts of a row.
  TILEWISE_INLINE bool owns_row(int slot) const { return (lane_ & Ops::FragmentLayout::kRowMask) == 0 || slot < 0; }

  /// Where a row stands in lse_accum, and in out_accum but for its head_dim_v.
  TILEWISE_INLINE int64_t accum_row(int32_t row) const {
    const int64_t of_part =
        kSchedules ? part_.place : static_cast<int64_t>(part_.number) * p_.shape.batch_size + queries_.batch;
    return (of_part * p_.shape.num_heads_q + queries_.head(row)) * p_.shape.seqlen_q + queries_.query(row);
  }

  TILEWISE_INLINE void store_lse(int32_t row, const RowLse& lse) const {
    if (!is_whole()) {
      lse.store<Machine>(p_.lse_accum, accum_row(row));
    } else if (p_.softmax_lse.data) {
      const int64_t i = queries_.query(row), head = queries_.head(row);
      Machine::store_global(p_.softmax_lse.data + lse_offset(p_.softmax_lse, sequence_, queries_.batch, i, head),
                            lse.sum());
    }
  }

  TILEWISE_INLINE void store_out_accum() {
    constexpr int kRun = C.vector_rows ? kAdjacentColumns<typename Ops::FragmentLayout> : 1;
    const auto cols = static_cast<int32_t>(columns_.count(p_.shape));
    float* row_start[Out::kSlots];
    TILEWISE_UNROLL
    for (int slot = 0; slot < Out::kSlots; ++slot) {
      const int32_t row = minimum(row_of_slot(slot), queries_.total_rows - 1);
      row_start[slot] = p_.out_accum + accum_row(row) * p_.shape.head_dim_v + columns_.first();
    }
    O_.template for_each_run<kRun>(lane_, [&](int slot, int col, const FloatRun<kRun>& run) {
      if (row_of_slot(slot) >= queries_.total_rows || (!C.exact_dims && col >= cols)) return;
      Machine::store_global(reinterpret_cast<FloatRun<kRun>*>(row_start[slot] + col), run);
    });
  }

  const Params& p_;
  Shared& shared_;
  Attended sequence_;
  Queries queries_;
  Columns columns_;
  KeyPart part_;
  int lane_, wave_row_;
  Pipeline pipeline_;
  typename Shared::QRows q_rows_;
  RowOf<C> row_scores_[Scores::kSlots];
  VisibleBand band_;
  DropoutSeed seed_;
  OnlineSoftmax<Scores> softmax_;
  Out O_;
};

}  // namespace tilewise::device
