// The streamed side of the kernels that own queries: tiles of a head's keys and values.
#pragma once

#include "device/attention/block_queries.h"
#include "device/attention/config.h"
#include "device/attention/tensor_rows.h"
#include "device/tile/direct_loader.h"
#include "device/tile/steady_loader.h"

namespace tilewise::device {

/// One tile on its way or being computed on. The uses are TileUse bits.
template <class Ops, auto C, int kKUse, int kVUse>
struct KvStage {
  StreamTile<C.k_type, C.block_n, C.head_dim, kKUse, Ops::kTransposedCopies> k;
  StreamTile<C.v_type, C.block_n, C.head_dim_v, kVUse, Ops::kTransposedCopies> v;
};

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
  /// For the queries of a block of the forward pass.
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
  TILEWISE_INLINE void scale_out(Out&) const {}

 private:
  RowSource<C.k_type> k_;
  RowSource<C.v_type> v_;
  TileLoader<Ops, C, decltype(Stage::k), has_few_registers<Ops>(C)> k_loader_;
  TileLoader<Ops, C, decltype(Stage::v), has_few_registers<Ops>(C)> v_loader_;
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
  TILEWISE_INLINE explicit StaggeredKvPipeline(Stage (&stages)[C.stages]) : stages_(stages) {
    TILEWISE_UNROLL
    for (int i = 0; i < C.stages; ++i) place_[i] = i;
  }

  template <class Params, class Queries>
  TILEWISE_INLINE void open_for(const Params& p, const Sequence& s, const Queries& queries) {
    const int64_t head_k = uniform<Machine>(queries.head_k());
    k_.open(key_source<C.k_type>(p.k, s, queries.batch, head_k, p.shape.head_dim));
    v_.open(key_source<C.v_type>(p.v, s, queries.batch, head_k, p.shape.head_dim_v));
  }

  /// Of this turn's tile, and of those after it.
  TILEWISE_INLINE Stage& stage(int later = 0) const { return stages_[place_[later]]; }
  TILEWISE_INLINE void turn() {
    const int first = place_[0];
    TILEWISE_UNROLL
    for (int i = 1; i < C.stages; ++i) place_[i - 1] = place_[i];
    place_[C.stages - 1] = first;
  }

  /// Once it returns, every lane may read the first tile's keys.
  TILEWISE_INLINE void begin(int32_t tile) {
    if constexpr (C.direct_keys) {
      for_parts<Keys::kParts>([&](int part) { k_.copy(part, stage().k, tile * C.block_n); });
      Machine::template wait_copies<0>();
      for_parts<Keys::kParts>([&](int part) { k_.copy(part, stage(1).k, (tile + 1) * C.block_n); });
    } else {
      for_parts<Keys::kLoads>([&](int part) { k_.load(part, tile * C.block_n); });
      for_parts<Keys::kStores>([&](int part) { k_.store(part, stage().k); });
      for_parts<Keys::kLoads>([&](int part) { k_.load(part, (tile + 1) * C.block_n); });
    }
    if constexpr (C.direct_values) {
      for_parts<Values::kParts>([&](int part) { v_.copy(part, stage().v, tile * C.block_n); });
    } else {
      for_parts<Values::kLoads>([&](int part) { v_.load(part, tile * C.block_n); });
    }
    Machine::barrier();
  }

  static constexpr int parts() { return Keys::kParts + Values::kParts; }

  /// One of the parts of what is done while the keys of `tile`, this turn's, are multiplied.
  TILEWISE_INLINE void pass_on(int part, int32_t tile) {
    if (part < Values::kParts) {
      if constexpr (C.direct_values) {
        v_.copy(part, stage(1).v, (tile + 1) * C.block_n);
      } else if (part < Values::kStores) {
        v_.store(part, stage().v);
      } else {
        v_.load(part - Values::kStores, (tile + 1) * C.block_n);
      }
      return;
    }
    part -= Values::kParts;
    if constexpr (C.direct_keys) {
      k_.copy(part, stage(2).k, (tile + 2) * C.block_n);
    } else if (part < Keys::kStores) {
      k_.store(part, stage(1).k);
    } else {
      k_.load(part - Keys::kStores, (tile + 2) * C.block_n);
    }
  }

  /// After all parts: what the next half of a turn reads is there, once a barrier has shown it to all.
  TILEWISE_INLINE void finish_parts() {
    static_assert(!kWaits || (Keys::kEveryWave && Values::kEveryWave), "waves wait for as many as each has asked for");
    if constexpr (kWaits) Machine::template wait_copies<Keys::kLoads + Values::kLoads>();
  }
  /// No copy lands once the block's shared memory is another's.
  TILEWISE_INLINE void finish() {
    if constexpr (kWaits) Machine::template wait_copies<0>();
  }

 private:
  template <int kParts, class Do>
  TILEWISE_INLINE static void for_parts(const Do& act) {
    TILEWISE_UNROLL
    for (int part = 0; part < kParts; ++part) act(part);
  }

  Stage* stages_;
  int place_[C.stages];  // of this turn's tile, and of those after it
  Keys k_;
  Values v_;
};

/// The columns of v and out that a block of the forward pass has: all of them.
struct WholeRows {
  TILEWISE_INLINE explicit WholeRows(GridPlace&) {}
  TILEWISE_INLINE static constexpr int32_t first() { return 0; }
  TILEWISE_INLINE static int64_t count(const AttentionShape& shape) { return shape.head_dim_v; }
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
  using Stage = Choose<C.direct_values != 0, DirectKvStage<Ops, C>, KvStage<Ops, C, kByRows, kByColumns>>;
  template <class Ops, auto C, class Stage>
  using Pipeline = KvPipeline<Ops, C, Stage>;
};

}  // namespace tilewise::device
