// Combines what blocks with a part of the keys each have left of a row: every part weighs exp(its lse), and the sink
// joins here, once. A call of few rows waits for memory and nothing else, so a lane asks for all it reads at once, and
// where splits are many each wave of a block takes some.
#pragma once

#include "device/attention/config.h"
#include "device/attention/grid_place.h"
#include "device/attention/kv_pipeline.h"
#include "device/attention/sink.h"
#include "device/attention/tensor_rows.h"
#include "device/tile/contract.h"
#include "device/tile/row_reference.h"

namespace tilewise::device {

template <TileOps Ops, auto C, class Call = AttentionCall>
class Combine {
  using Machine = typename Ops::Machine;
  static constexpr int kLaneCols = 4, kCols = kLaneCols * Machine::kLanes;  // of a pass
  static constexpr bool kSchedules = Call::template schedules<C>(), kTakesTurns = Call::template takes_turns<C>();

 public:
  using Params = typename Call::Combine;
  struct Shared {
    alignas(16) float weights[C.waves][kMostSplits];
    float parts[C.waves][kCols];
  };

  TILEWISE_INLINE static void run(const Params& p, Shared& shared) {
    if constexpr (kTakesTurns) {
      take_turns(p, shared);
    } else {
      const GridPlace place = grid_place<Machine>(p.grid);
      const Sequence s = Call::template sequence_at<C>(p, place.batch);
      const Splits splits = splits_of(p, place.batch);
      if (kSchedules && splits.count == 1) return;  // stands in out as it is
      join(p, shared, place, s, splits);
    }
  }

 private:
  /// A sequence's parts: in the workspace `first` is the entry of its first one, from which the others are `stride`
  /// rows apart.
  struct Splits {
    int32_t count;
    int64_t first, stride;
  };

  TILEWISE_INLINE static void take_turns(const Params& p, Shared& shared) {
    wait_for_step_before<Machine>();
    const auto heads = static_cast<int32_t>(p.shape.num_heads_q);
    const int32_t teams = static_cast<int32_t>(p.shape.seqlen_q) * teams_a_row(p);
    const typename Call::template Rows<Machine> rows(p, heads * ceil_div(teams, C.waves), heads * teams);
    for (int32_t turn = Machine::block();; turn += p.grid.num_tiles) {
      GridPlace place{};
      int32_t piece = turn;
      const KeyPart parts = rows.sequence_of(piece, place.batch);
      if (parts.count == 0) return;
      place.tile = piece / heads, place.head = piece % heads;
      const Sequence s = Call::template sequence_at<C>(p, place.batch);
      join(p, shared, place, s, {parts.count, parts.place, p.shape.num_heads_q * p.shape.seqlen_q});
    }
  }
  TILEWISE_INLINE static int32_t teams_a_row(const Params& p) {
    return ceil_div(static_cast<int32_t>(p.shape.head_dim_v), kCols);
  }

  TILEWISE_INLINE static void join(const Params& p, Shared& shared, const GridPlace& place, const Sequence& s,
                                   const Splits& splits) {
    const AttentionShape& shape = p.shape;
    const Team team(splits.count);
    // A team has as many columns of a row as its lanes can add up at once: rows of more are several teams'. Lanes
    // without a row of their own do the last one's, and store nothing: barriers need them all.
    const auto head_dim_v = static_cast<int32_t>(shape.head_dim_v);
    const int32_t own = place.tile * (C.waves / team.waves) + team.number, teams = teams_a_row(p);
    const int64_t own_row = own / teams, i = minimum<int64_t>(own_row, s.all_q - 1);
    if (s.all_q == 0) return;
    const int32_t first_col = own % teams * kCols, cols = minimum(kCols, head_dim_v - first_col);
    const int64_t rows = splits.stride;
    const int64_t row = dense_row(shape, splits.first, i, place.head);
    const bool used = i < s.seqlen_q;

    // What was read until here stood in memory before the plan.
    if constexpr (!kSchedules) wait_for_step_before<Machine>();
    float* const weights = shared.weights[team.first_wave];
    const Totals totals = weigh(p, splits.count, rows, row, place.head, used, weights, team.wave == 0);
    Machine::barrier();
    auto* out = mutable_elements_of<C.out_type>(p.out) + query_offset(p.out, s, place.batch, i, place.head);
    const float inverse = totals.seen ? 1.0f / totals.sum : 0.0f;
    add_splits(shared.parts[Machine::wave()], weights, p.out_accum, used ? team : Team{}, rows * shape.head_dim_v,
               row * shape.head_dim_v + first_col, cols);
    Machine::barrier();
    for (int col = team.wave * Machine::kLanes + Machine::lane(); own_row == i && col < cols;
         col += team.waves * Machine::kLanes) {
      float sum = 0.0f;
      for (int wave = 0; wave < team.waves; ++wave) {
        sum += Machine::template load_shared<float>(&shared.parts[team.first_wave + wave][col]);
      }
      const auto element =
          static_cast<ElementBits<C.out_type>>(Machine::template pack<C.out_type>(sum * inverse, 0.0f));
      Machine::store_global(out + first_col + col, element);
    }
    const bool stores_lse = own_row == i && first_col == 0 && team.wave == 0 && Machine::lane() == 0;
    if (stores_lse && p.softmax_lse.data) {
      const float lse = used ? totals.highest + Machine::log2(totals.sum) * kLn2 : -kInfinity;
      Machine::store_global(p.softmax_lse.data + lse_offset(p.softmax_lse, s, place.batch, i, place.head), lse);
    }
  }

  TILEWISE_INLINE static Splits splits_of(const Params& p, int32_t batch) {
    const int64_t of_entry = p.shape.num_heads_q * p.shape.seqlen_q;
    if constexpr (kSchedules) {
      const KeyPart parts = Call::template parts_of<Machine, C>(p, batch);
      return {parts.count, parts.place, of_entry};
    } else {
      return {static_cast<int32_t>(p.num_splits), batch, p.shape.batch_size * of_entry};
    }
  }

  /// All of a block where splits are many, or may be.
  TILEWISE_INLINE static int waves_of_team(int num_splits) {
    return (kSchedules && !kTakesTurns) || num_splits > kRowSplits ? C.waves : 1;
  }
  /// The waves that share a row's columns.
  struct Team {
    int splits = 0, waves = 1, number = 0, wave = 0, first_wave = 0;
    TILEWISE_INLINE Team() = default;
    TILEWISE_INLINE explicit Team(int num_splits) : splits(num_splits) {
      const int own = Machine::wave();
      waves = waves_of_team(num_splits);
      number = own / waves;
      wave = own % waves;
      first_wave = own - wave;
    }
  };

  /// The highest of the scores that the parts' lse are counted from, and the sum of weights, a NaN where any lse is
  /// one. `seen`: by any split.
  struct Totals {
    float highest, sum;
    bool seen;
  };

  /// Each lane weighs some splits: their loads run side by side. Every wave does, and has the totals.
  TILEWISE_INLINE static Totals weigh(const Params& p, int32_t splits, int64_t rows, int64_t row, int32_t head,
                                      bool used, float* weights, bool stores) {
    constexpr int kEach = kMostSplits / Machine::kLanes;
    RowLse lse[kEach];
    float highest = -kInfinity;
    TILEWISE_UNROLL
    for (int j = 0; j < kEach; ++j) {
      const int split = Machine::lane() + j * Machine::kLanes;
      const bool there = used && split < splits;
      lse[j] = RowLse{-kInfinity, 0.0f};
      if (there) lse[j] = RowLse::load<Machine>(p.lse_accum, split * rows + row);
      highest = maximum(highest, lse[j].score);
    }
    TILEWISE_UNROLL
    for (int bit = 1; bit < Machine::kLanes; bit *= 2) highest = maximum(highest, Machine::shuffle_xor(highest, bit));
    float sink = -kInfinity;
    if constexpr (C.sink) sink = used ? load_sink<Machine, C.q_type>(p.sink, head) : sink;
    const bool seen = highest != -kInfinity;
    highest = maximum(highest, sink);
    const float base = highest == -kInfinity ? 0.0f : highest;
    float sum = 0.0f;
    TILEWISE_UNROLL
    for (int j = 0; j < kEach; ++j) {
      const float weight = Machine::exp2(((lse[j].score - base) + lse[j].rest) * kLog2E);
      if (stores) Machine::store_shared(&weights[Machine::lane() + j * Machine::kLanes], weight);
      sum += weight;
    }
    TILEWISE_UNROLL
    for (int bit = 1; bit < Machine::kLanes; bit *= 2) sum += Machine::shuffle_xor(sum, bit);
    if (sink != -kInfinity) sum += Machine::exp2((sink - base) * kLog2E);
    return {highest, sum, seen};
  }

  /// This wave's part of the weighted sums of `cols` columns. A split that saw nothing has written zeros.
  TILEWISE_INLINE static void add_splits(float* part, const float* weights, const float* out_accum, const Team& team,
                                         int64_t values, int64_t place, int32_t cols) {
    FloatRun<kLaneCols> sums{};
    for (int first = team.wave; first < team.splits; first += kRowSplits * team.waves) {
      FloatRun<kLaneCols> read[kRowSplits];
      TILEWISE_UNROLL
      for (int j = 0; j < kRowSplits; ++j) {
        const int split = minimum(first + j * team.waves, team.splits - 1);
        read[j] = load_cols(out_accum + split * values + place, cols);
      }
      Machine::wave_sync();  // else loads wait for sums: combining 64 splits took 9 us instead of 5 on an H200
      TILEWISE_UNROLL
      for (int j = 0; j < kRowSplits; ++j) {
        const int split = first + j * team.waves;
        const float weight = Machine::template load_shared<float>(&weights[minimum(split, kMostSplits - 1)]);
        TILEWISE_UNROLL
        for (int c = 0; c < kLaneCols; ++c) {
          sums.value[c] += split < team.splits ? weight * read[j].value[c] : 0.0f;
        }
      }
    }
    Machine::store_shared(&part[Machine::lane() * kLaneCols], sums);
  }

  /// The lane's columns of a row, or some others past the end.
  TILEWISE_INLINE static FloatRun<kLaneCols> load_cols(const float* row, int32_t cols) {
    const int first = Machine::lane() * kLaneCols;
    FloatRun<kLaneCols> run;
    if constexpr (C.vector_rows) {
      run = Machine::load_global(reinterpret_cast<const FloatRun<kLaneCols>*>(row + minimum(first, cols - kLaneCols)));
    } else {
      TILEWISE_UNROLL
      for (int c = 0; c < kLaneCols; ++c) run.value[c] = Machine::load_global(row + minimum(first + c, cols - 1));
    }
    return run;
  }
};

}  // namespace tilewise::device
