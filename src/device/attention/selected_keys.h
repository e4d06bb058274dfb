// Keys that key_indices select: those of a block's one query, gathered into tiles in the order of its indices.
#pragma once

#include "device/attention/block_queries.h"
#include "device/attention/kv_stage.h"
#include "device/attention/scores.h"
#include "device/common/selected.h"
#include "device/tile/gather_loader.h"

namespace tilewise::device {

/// Which keys a block's query has selected, of those that mask and window leave to it.
template <class Machine>
class KeySelection {
 public:
  template <class Params>
  TILEWISE_INLINE void open(const Params& p, const Sequence& s, int32_t batch, int32_t head_k, int32_t query) {
    const KeyRange seen = visible_keys(p.score, s, diagonal_offset(p.score, s), query);
    indices_ = p.key_indices.row(batch, s.q_row + query, head_k);
    count_ = static_cast<int32_t>(p.key_indices.count);
    seen_ = {static_cast<int32_t>(seen.begin), static_cast<int32_t>(seen.end)};
    none_ = static_cast<int32_t>(s.seqlen_k);
  }

  /// Index n, or past the keys where it is none that the query sees: there the mask hides it.
  TILEWISE_INLINE int32_t key(int32_t n) const {
    const int32_t index = Machine::load_global(indices_ + minimum(n, count_ - 1));
    const int32_t key = n < count_ ? selected_key(index, seen_) : -1;
    return key < 0 ? none_ : key;
  }
  TILEWISE_INLINE bool is_key(int32_t key) const { return key < none_; }

 private:
  struct Range {
    int32_t begin, end;
  };
  const int32_t* indices_;
  int32_t count_, none_;
  Range seen_;
};

/// The keys of a tile's columns, in shared memory.
template <bool kWanted, int kKeys>
struct TileKeys {};
template <int kKeys>
struct TileKeys<true, kKeys> {
  int32_t selected[kKeys];
};

/// Where a tile's rows are, for as many tiles as a stage holds places of.
template <bool kWanted, int kElement, int kTokens, int kTiles>
struct TilePlaces {};
template <int kElement, int kTokens, int kTiles>
struct TilePlaces<true, kElement, kTokens, kTiles> {
  struct Rows {
    alignas(16) const ElementBits<kElement>* k[kTokens], *v[kTokens];
  } rows[kTiles];
};

/// The uses are TileUse bits.
template <class Ops, auto C, int kKUse = kByRows, int kVUse = kByColumns>
struct SelectedStage : KvStage<Ops, C, kKUse, kVUse>,
                       TilePlaces<true, C.k_type, C.block_n, selected_places(C)>,
                       TileKeys<true, C.block_n> {};

/// What KvPipeline is to keys in a row. Indices are read a tile ahead of the rows that they name.
template <class Ops, auto C, class Stage>
class SelectedPipeline {
  using Machine = typename Ops::Machine;
  using Rows = GatheredRows<C.k_type, true>;
  static_assert(C.k_type == C.v_type);

 public:
  template <class Params, class Queries, class Columns>
  TILEWISE_INLINE void open_for(const Params& p, const Sequence& s, const Queries& queries, const Columns&) {
    const int64_t head_k = uniform<Machine>(queries.head_k());
    k_head_ = key_source<C.k_type>(p.k, s, queries.batch, head_k, p.shape.head_dim);
    v_head_ = key_source<C.v_type>(p.v, s, queries.batch, head_k, p.shape.head_dim_v);
    k_ = {nullptr, k_head_.cols, k_head_.data}, v_ = {nullptr, v_head_.cols, v_head_.data};
    selection_.open(p, s, queries.batch, queries.head_k(), queries.query(queries.first_row));
    turn_ = 0;
  }

  /// The first tile.
  TILEWISE_INLINE void begin(Stage& stage, int32_t tile) {
    select(tile);
    place(stage, tile);
    Machine::barrier();
    start(stage, tile);
  }
  TILEWISE_INLINE void start(Stage& stage, int32_t) {
    k_.rows = stage.rows[turn_].k, v_.rows = stage.rows[turn_].v;
    k_loader_.start(stage.k, k_);
    v_loader_.start(stage.v, v_);
  }

  /// As KvPipeline's. Places of the next tile, if there is one, are shared by the same barrier.
  TILEWISE_INLINE void wait(Stage& stage, Stage& next_stage, int32_t next) {
    if constexpr (C.stages == 1) Machine::barrier();
    for_each_own([&](int i, int key) { Machine::store_shared(&stage.selected[key], placed_[i]); });
    place(next_stage, next);
    Ops::finish_copies();
    k_loader_.finish(stage.k);
    v_loader_.finish(stage.v);
    Machine::barrier();
  }
  TILEWISE_INLINE static SelectedColumns<Machine> keys_of_columns(const Stage& stage, int32_t) {
    return {stage.selected};
  }

  static constexpr bool kTwoTerms = false, kStartsByHalves = false;
  template <class Scores>
  TILEWISE_INLINE void scale_scores(Scores&, const Stage&) const {}
  template <class Scores>
  TILEWISE_INLINE void scale_weights(Scores&, const Stage&) const {}
  template <class Out>
  TILEWISE_INLINE void finish_out(Out&) const {}
  TILEWISE_INLINE static const auto& keys(const Stage& stage) { return stage.k; }
  TILEWISE_INLINE static const auto& values(const Stage& stage) { return stage.v; }

 private:
  static constexpr int kThreads = C.waves * Machine::kLanes, kKeysALane = ceil_div(C.block_n, kThreads);
  static constexpr bool kTight = has_few_registers<Ops>(C);

  /// visit(i, key) for each of a tile's keys that are this lane's work.
  template <class Visit>
  TILEWISE_INLINE static void for_each_own(const Visit& visit) {
    TILEWISE_UNROLL
    for (int i = 0; i < kKeysALane; ++i) {
      const int key = Machine::thread() + i * kThreads;
      if (key < C.block_n) visit(i, key);
    }
  }
  TILEWISE_INLINE void select(int32_t tile) {
    for_each_own([&](int i, int key) { next_[i] = selection_.key(tile * C.block_n + key); });
  }
  /// Leaves where the tile's rows lie for all to find after a barrier, and asks for the indices of the next one.
  TILEWISE_INLINE void place(Stage& stage, int32_t tile) {
    turn_ = (turn_ + 1) % selected_places(C);
    auto& rows = stage.rows[turn_];
    for_each_own([&](int i, int key) {
      const int64_t row = placed_[i] = next_[i];
      const bool is_key = selection_.is_key(placed_[i]);
      Machine::store_shared(&rows.k[key], is_key ? k_head_.data + row * k_head_.stride : nullptr);
      Machine::store_shared(&rows.v[key], is_key ? v_head_.data + row * v_head_.stride : nullptr);
    });
    select(tile + 1);
  }

  RowSource<C.k_type> k_head_;
  RowSource<C.v_type> v_head_;
  Rows k_, v_;
  KeySelection<Machine> selection_;
  int32_t placed_[kKeysALane], next_[kKeysALane];  // of the tile whose places were shared last, and of the one after it
  int32_t turn_;                                   // which of a stage's places are those shared last
  GatherLoader<Ops, C, decltype(Stage::k), Rows, kTight> k_loader_;
  GatherLoader<Ops, C, decltype(Stage::v), Rows, kTight> v_loader_;
};

}  // namespace tilewise::device
