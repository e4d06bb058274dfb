// The streamed side of the kernels that own queries: tiles of a head's keys and values.
#pragma once

#include "device/attention/block_queries.h"
#include "device/attention/selected_keys.h"
#include "device/tile/direct_loader.h"
#include "device/tile/steady_loader.h"

namespace tilewise::device {

/// Tile t passes through stage t % C.stages.
template <class Ops, auto C, class Stage>
class KvPipeline {
  using Machine = typename Ops::Machine;

 public:
  template <class Params>
  TILEWISE_INLINE void open(const Params& p, const Sequence& sequence, int64_t batch, int64_t head_k) {
    k_ = key_source<C.k_type>(p.k, sequence, batch, head_k, p.shape.head_dim);
    v_ = key_source<C.v_type>(p.v, sequence, batch, head_k, p.shape.head_dim_v);
  }
  /// For the queries of a block, and the columns of a block of the forward pass.
  template <class Params, class Queries, class Columns>
  TILEWISE_INLINE void open_for(const Params& p, const Sequence& sequence, const Queries& queries, const Columns&) {
    open(p, sequence, queries.batch, uniform<Machine>(queries.head_k()));
  }

  /// The first tile.
  TILEWISE_INLINE void begin(Stage& stage, int32_t tile) { start(stage, tile); }
  TILEWISE_INLINE void start(Stage& stage, int32_t tile) {
    k_loader_.start(stage.k, k_, tile * C.block_n);
    v_loader_.start(stage.v, v_, tile * C.block_n);
  }

  /// Once it returns, every lane may read the tile, and has done with the one before.
  TILEWISE_INLINE void wait(Stage& stage) {
    if constexpr (C.stages == 1) Machine::barrier();  // the last tile was read by all
    Ops::finish_copies();
    k_loader_.finish(stage.k);
    v_loader_.finish(stage.v);
    Machine::barrier();
  }

  /// With the next tile's stage and number: its rows lie where anyone finds them.
  TILEWISE_INLINE void wait(Stage& stage, const Stage&, int32_t) { wait(stage); }

  /// Keys and values are what stands in memory: nothing is left to scale.
  static constexpr bool kTwoTerms = false;
  template <class Scores>
  TILEWISE_INLINE void scale_scores(Scores&, const Stage&) const {}
  template <class Scores>
  TILEWISE_INLINE void scale_weights(Scores&, const Stage&) const {}
  template <class Out>
  TILEWISE_INLINE void finish_out(Out&) const {}

  TILEWISE_INLINE static int32_t keys_of_columns(const Stage&, int32_t tile) { return tile * C.block_n; }

  static constexpr bool kStartsByHalves = false;
  TILEWISE_INLINE static const auto& keys(const Stage& stage) { return stage.k; }
  TILEWISE_INLINE static const auto& values(const Stage& stage) { return stage.v; }

 private:
  RowSource<C.k_type> k_;
  RowSource<C.v_type> v_;
  TileLoader<Ops, C, decltype(Stage::k), has_few_registers<Ops>(C)> k_loader_;
  TileLoader<Ops, C, decltype(Stage::v), has_few_registers<Ops>(C)> v_loader_;
};

/// The same where tiles are asked for part by part, in any places of a loop.
template <class Ops, auto C, class Stage>
class SteadyKvPipeline {
  using Machine = typename Ops::Machine;
  using Loaders = SteadyPair<Ops, C, decltype(Stage::k), decltype(Stage::v)>;

 public:
  template <class Params>
  TILEWISE_INLINE void open(const Params& p, const Sequence& sequence, int64_t batch, int64_t head_k) {
    loaders_.open(key_source<C.k_type>(p.k, sequence, batch, head_k, p.shape.head_dim),
                  key_source<C.v_type>(p.v, sequence, batch, head_k, p.shape.head_dim_v));
  }
  template <class Params, class Queries, class Columns>
  TILEWISE_INLINE void open_for(const Params& p, const Sequence& sequence, const Queries& queries, const Columns&) {
    open(p, sequence, queries.batch, uniform<Machine>(queries.head_k()));
  }

  /// The first tile.
  TILEWISE_INLINE void begin(Stage&, int32_t tile) {
    move_to(tile);
    loaders_.load_all();
  }
  /// To the tile whose parts are asked for next. After the last one that is itself, which costs less than a branch.
  TILEWISE_INLINE void move_to(int32_t tile) { loaders_.move_to(tile * C.block_n); }
  static constexpr int parts() { return Loaders::kParts; }
  TILEWISE_INLINE void load_part(int part) { loaders_.load(part); }

  /// As KvPipeline's.
  TILEWISE_INLINE void wait(Stage& stage) {
    if constexpr (C.stages == 1) Machine::barrier();
    loaders_.store_all(stage.k, stage.v);
    Machine::barrier();
  }
  TILEWISE_INLINE void wait(Stage& stage, const Stage&, int32_t) { wait(stage); }
  TILEWISE_INLINE static int32_t keys_of_columns(const Stage&, int32_t tile) { return tile * C.block_n; }

 private:
  Loaders loaders_;
};

/// The same where tiles of values are copied straight to shared memory.
template <class Ops, auto C>
struct DirectKvStage {
  StreamTile<C.k_type, C.block_n, C.head_dim, kByRows, Ops::kTransposedCopies> k;
  ColumnsOfRows<C.v_type, C.block_n, C.head_dim_v> v;
};

/// Where halves of the waves take turns at multiplying. Keys are a tile ahead of values: while a tile's keys are
/// multiplied, the keys of the next one and its own values get to their places, and what follows those is asked for.
template <class Ops, auto C, class Stage>
class StaggeredKvPipeline {
  using Machine = typename Ops::Machine;
  template <bool kDirect, class Tile>
  using Loader = Choose<kDirect, DirectLoader<Ops, C, Tile>, SteadyLoader<Ops, C, Tile, has_few_registers<Ops>(C)>>;
  using Keys = Loader<C.direct_keys != 0, decltype(Stage::k)>;
  using Values = Loader<C.direct_values != 0, decltype(Stage::v)>;
  static constexpr bool kWaits = C.direct_keys || C.direct_values;
  static_assert(C.stages == (kWaits ? 3 : 2));

 public:
  using Stages = StagesBySide<Stage, C.stages>;
  TILEWISE_INLINE explicit StaggeredKvPipeline(Stages& stages) : keys_(stages.k), values_(stages.v) {
    // Where values lie beyond an immediate's reach they have registers of their own to count from.
    constexpr int kReach = 1 << 16;
    if constexpr (sizeof(Stages) > kReach) values_ = not_folded<Machine>(stages.v);
  }

  template <class Params, class Queries>
  TILEWISE_INLINE void open_for(const Params& p, const Sequence& s, const Queries& queries) {
    const int64_t head_k = uniform<Machine>(queries.head_k());
    k_.open(key_source<C.k_type>(p.k, s, queries.batch, head_k, p.shape.head_dim));
    v_.open(key_source<C.v_type>(p.v, s, queries.batch, head_k, p.shape.head_dim_v));
  }

  /// Of the tile of a turn, of as many as there are stages, or of one after the last of them.
  TILEWISE_INLINE auto& keys(int turn) const { return keys_[place_of(turn)]; }
  TILEWISE_INLINE auto& values(int turn) const { return values_[place_of(turn)]; }

  /// Once it returns, every lane may read the first tile's keys.
  TILEWISE_INLINE void begin(int turn, int32_t tile) {
    const int32_t row = tile * C.block_n;
    k_.seek(row);
    if constexpr (C.direct_keys) {
      for_parts<Keys::kParts>([&](int part) { k_.copy(part, keys(turn)); });
      Machine::template wait_copies<0>();
      k_.copy_far(keys(turn), row);
      k_.seek(row + C.block_n);
      for_parts<Keys::kParts>([&](int part) { k_.copy(part, keys(turn + 1)); });
      k_.copy_far(keys(turn + 1), row + C.block_n);
    } else {
      for_parts<Keys::kLoads>([&](int part) { k_.load(part); });
      for_parts<Keys::kStores>([&](int part) { k_.store(part, keys(turn)); });
      k_.copy_far(keys(turn), row);
      k_.seek(row + C.block_n);
      for_parts<Keys::kLoads>([&](int part) { k_.load(part); });
    }
    v_.seek(row);
    if constexpr (C.direct_values) {
      for_parts<Values::kParts>([&](int part) { v_.copy(part, values(turn)); });
      v_.copy_far(values(turn), row);
    } else {
      for_parts<Values::kLoads>([&](int part) { v_.load(part); });
    }
    find_first_seek();
    is_far_ = k_.is_far() || v_.is_far();
    Machine::barrier();
  }

  static constexpr int parts() { return Keys::kParts + Values::kParts; }

  /// One of the parts of what is done while the keys of `tile`, a turn's, are multiplied.
  TILEWISE_INLINE void pass_on(int part, int turn, int32_t tile) {
    if (part == 0) move_on(tile);
    if (part < Values::kParts) {
      if constexpr (C.direct_values) {
        v_.copy(part, values(turn + 1));
      } else if (part < Values::kStores) {
        v_.store(part, values(turn));
      } else {
        v_.load(part - Values::kStores);
      }
      return;
    }
    part -= Values::kParts;
    if constexpr (C.direct_keys) {
      k_.copy(part, keys(turn + 2));
    } else if (part < Keys::kStores) {
      k_.store(part, keys(turn + 1));
    } else {
      k_.load(part - Keys::kStores);
    }
  }

  /// After all parts: what the next half of a turn reads is there, once a barrier has shown it to all.
  TILEWISE_INLINE void finish_parts(int turn, int32_t tile) {
    if (is_far_) {
      const int32_t row = tile * C.block_n;
      constexpr int kValuesAhead = C.direct_values ? 1 : 0, kKeysAhead = C.direct_keys ? 2 : 1;
      v_.copy_far(values(turn + kValuesAhead), row + kValuesAhead * C.block_n);
      k_.copy_far(keys(turn + kKeysAhead), row + kKeysAhead * C.block_n);
    }
    static_assert(!kWaits || (Keys::kEveryWave && Values::kEveryWave), "waves wait for as many as each has asked for");
    if constexpr (kWaits) Machine::template wait_copies<Keys::kLoads + Values::kLoads>();
  }
  /// No copy lands once the block's shared memory is another's.
  TILEWISE_INLINE void finish() {
    if constexpr (kWaits) Machine::template wait_copies<0>();
  }

 private:
  TILEWISE_INLINE static int place_of(int turn) { return turn < C.stages ? turn : turn - C.stages; }

  /// To what is asked for in the turn of a tile. Windows move rarely: one comparison says whether either does.
  TILEWISE_INLINE void move_on(int32_t tile) {
    k_.step();
    v_.step();
    if (tile < first_seek_) return;
    const int32_t row = uniform<Machine>(Machine::not_hoisted(tile)) * C.block_n;
    k_.seek(row + 2 * C.block_n);
    v_.seek(row + C.block_n);
    find_first_seek();
  }
  TILEWISE_INLINE void find_first_seek() {
    const auto last_tile = [](int32_t last_row) { return (last_row + C.block_n) / C.block_n - 1; };
    first_seek_ = minimum(last_tile(k_.last_row()) - 1, last_tile(v_.last_row()));
  }

  template <int kParts, class Do>
  TILEWISE_INLINE static void for_parts(const Do& act) {
    TILEWISE_UNROLL
    for (int part = 0; part < kParts; ++part) act(part);
  }

  decltype(Stage::k)* keys_;
  decltype(Stage::v)* values_;
  int32_t first_seek_;  // the first tile in whose turn step() may not do
  bool is_far_;
  Keys k_;
  Values v_;
};

/// The columns of v and out that a block of the forward pass has: all of them.
struct WholeRows {
  TILEWISE_INLINE explicit WholeRows(GridPlace&) {}
  TILEWISE_INLINE static constexpr int32_t first() { return 0; }
  TILEWISE_INLINE static int64_t count(const AttentionShape& shape) { return shape.head_dim_v; }
};

template <bool kSelects, class Ops, auto C, class Stage>
struct ChooseKvPipeline {
  using Type = KvPipeline<Ops, C, Stage>;
};
template <class Ops, auto C, class Stage>
struct ChooseKvPipeline<true, Ops, C, Stage> {
  using Type = SelectedPipeline<Ops, C, Stage>;
};

/// What a call is to the forward kernel and to combine: their parameters, its sequences, and where keys come from.
/// Other operations that attend provide one of their own.
struct AttentionCall {
  static constexpr bool kFollows = false;  // the forward kernel may come after another step
  /// Whether the forward kernel appends new keys: with new_keys() and append().
  template <auto C>
  static constexpr bool appends() {
    return false;
  }
  using Forward = ForwardParams;
  using Combine = CombineParams;
  using AttendedSequence = Sequence;
  /// Whether the sequence's keys are known once add_keys() was called: queries are loaded, and a tile of keys, before.
  template <auto C>
  static constexpr bool adds_keys() {
    return false;
  }
  /// The part of the keys that a block has, and of which sequence: where it has none, the count is 0.
  template <class Machine, auto C, class Params>
  TILEWISE_INLINE static KeyPart part_at(const Params& p, const GridPlace& place) {
    return {place.split, p.grid.num_splits, 0};
  }
  /// Whether sequences differ in their number of parts: then parts_of() tells combine, and the only part of a sequence
  /// leaves what an unsplit one does.
  template <auto C>
  static constexpr bool schedules() {
    return false;
  }
  /// Whether combine's blocks take turns at rows of several parts then: Rows says whose they are.
  template <auto C>
  static constexpr bool takes_turns() {
    return false;
  }
  template <auto C, class Params>
  TILEWISE_INLINE static Sequence sequence_at(const Params& p, int64_t batch) {
    return device::sequence_at<C>(p.shape, batch);
  }
  template <auto C>
  using Columns = WholeRows;
  /// Whether queries are more than what lies in memory.
  template <auto C>
  static constexpr bool changes_queries() {
    return false;
  }
  /// Calls meanwhile() once it has asked for them.
  template <class Ops, auto C, class Rows, class Params, class Queries, class Meanwhile>
  TILEWISE_INLINE static void load_queries(Rows& rows, typename Rows::Tile& tile, int wave_row, const Params& p,
                                           const Sequence& s, const Queries& queries, const Meanwhile& meanwhile) {
    rows.load(
        tile, wave_row, p.shape.head_dim,
        [&](int row) { return queries.template address_to_read<C.q_type>(p.q, s, row); },
        queries.rows_of_block(C.block_m()));
    meanwhile();
  }
  template <class Ops, auto C>
  using Out = Fragment<Ops, C.rows_per_wave, C.head_dim_v>;
  template <class Ops, auto C>
  using Stage = Choose<C.selects != 0, SelectedStage<Ops, C>,
                       Choose<C.direct_values != 0, DirectKvStage<Ops, C>, KvStage<Ops, C, kByRows, kByColumns>>>;
  template <class Ops, auto C, class Stage>
  using Pipeline = typename ChooseKvPipeline<(C.selects != 0), Ops, C, Stage>::Type;
};

}  // namespace tilewise::device
