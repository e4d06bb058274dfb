// The streamed side of attention over a cache: tiles of a key head's keys and values, from places in a row or from
// pages, and the scales of fp8 elements.
#pragma once

#include "device/attention/block_queries.h"
#include "device/attention/kv_pipeline.h"
#include "device/attention/seen_tiles.h"
#include "device/kv_cache/cache_stage.h"
#include "device/kv_cache/places.h"
#include "device/kv_cache/sequence.h"
#include "device/tile/byte_numbers.h"
#include "device/tile/gather_loader.h"

namespace tilewise::device {

template <int kWay, class Ops, auto C, class Tile, class Rows, bool kTight>
struct ChooseLoader {
  using Type = GatherLoader<Ops, C, Tile, Rows, kTight>;
};
template <class Ops, auto C, class Tile, class Rows, bool kTight>
struct ChooseLoader<kPlainRows, Ops, C, Tile, Rows, kTight> {
  using Type = TileLoader<Ops, C, Tile, kTight>;
};
template <class Ops, auto C, class Tile, class Rows, bool kTight>
struct ChooseLoader<kGatheredBytes, Ops, C, Tile, Rows, kTight> {
  using Type = BytesLoader<Ops, C, Tile, Rows>;
};
template <class Ops, auto C, class Tile, class Rows, bool kTight>
struct ChooseLoader<kByteTiles, Ops, C, Tile, Rows, kTight> {
  using Type = ByteTileLoader<Ops, C, Tile, Rows>;
};

template <class Ops, auto C, class Tile, class Rows, bool kTight>
struct ChooseLoader<kOperandTiles, Ops, C, Tile, Rows, kTight> {
  using Type = typename Tile::Held;
};

/// Of tiles that do not come in turn: the one whose pages are held.
template <bool kWanted>
struct HeldTile {};
template <>
struct HeldTile<true> {
  int32_t held_tile;
};

/// What KvPipeline is to attention.
template <class Ops, auto C, class Stage>
class CachePipeline : HeldTile<skips_tiles<C>()> {
  using Machine = typename Ops::Machine;
  static constexpr CacheWay kWay = way_of(C);
  static constexpr bool kSelects = C.selects != 0;
  using Rows = Choose<kWay == kPlainRows, RowSource<C.cache_type>, GatheredRows<C.cache_type, kSelects>>;
  static constexpr int kThreads = C.waves * Machine::kLanes;

 public:
  template <class Params, class Queries, class Columns>
  TILEWISE_INLINE void open_for(const Params& p, const CachedSequence& s, const Queries& queries,
                                const Columns& columns) {
    open_head(p, s.cache.cache_row, queries, columns);
    open_keys(p, s, queries);
  }

  /// Asks for a tile of a cache that is full, if it has it: nothing is known of it yet but its places.
  template <class Params, class Queries, class Columns>
  TILEWISE_INLINE void begin_early(Stage& stage, const Params& p, const Queries& queries, const Columns& columns,
                                   int32_t tile) {
    const int64_t batch = queries.batch;
    const CacheSequence cache = cache_sequence_of(p.shape, p.cache, batch, places_of(p.shape, p.cache));
    open_head(p, cache.cache_row, queries, columns);
    open_keys(p, attended_sequence<C>(p.shape, p.cache, batch, cache), queries);
    early_ = !has_new_key(tile);
    if (early_) begin(stage, tile);
  }
  /// The block's first tile, now that its sequence is known: the one that was asked for early, if all of it is there.
  template <class Params, class Queries>
  TILEWISE_INLINE void begin_late(Stage& stage, const Params& p, const CachedSequence& s, const Queries& queries,
                                  int32_t early_tile, int32_t tile) {
    open_keys(p, s, queries);
    if (early_ && tile == early_tile && !has_new_key(tile)) return;
    if (early_) {
      Ops::finish_copies();
      Machine::barrier();
    }
    begin(stage, tile);
  }

  /// Whether a tile has keys that were not in the cache before this call, or none at all.
  TILEWISE_INLINE bool has_new_key(int32_t tile) const { return (tile + 1) * C.block_n > first_new_key_; }

  /// The first tile.
  TILEWISE_INLINE void begin(Stage& stage, int32_t tile) {
    if constexpr (kWay != kPlainRows) {
      if constexpr (kSelects) select(tile);
      look_up_pages(tile);
      look_ahead(stage, tile);
      Machine::barrier();
    }
    start(stage, tile);
  }

  /// Whether the next tile's keys and values are asked for one by one, each once this tile's were multiplied: they take
  /// the same registers. After the last tile they repeat a row, which costs less than a branch.
  static constexpr bool kStartsByHalves = kWay == kOperandTiles;
  TILEWISE_INLINE void start_keys() { k_loader_.load(); }
  TILEWISE_INLINE void start_values() { v_loader_.load(); }
  /// Of a tile that has come, as products take them.
  TILEWISE_INLINE const auto& keys(const Stage& stage) {
    if constexpr (kStartsByHalves) {
      k_loader_.translate();
      return k_loader_;
    } else {
      return stage.k;
    }
  }
  TILEWISE_INLINE const auto& values(const Stage& stage) {
    if constexpr (kStartsByHalves) {
      v_loader_.translate();
      return v_loader_;
    } else {
      return stage.v;
    }
  }

  /// Tiles come in turn. New keys are the last ones, but where keys are selected: until a tile has some, a step that
  /// appends them may go on.
  TILEWISE_INLINE void start(Stage& stage, int32_t tile) {
    if (!C.appends && (kSelects || has_new_key(tile))) wait_for_step_before<Machine>();
    if constexpr (kWay != kPlainRows) {
      auto& rows = stage.rows[turn_];
      k_.rows = rows.k, v_.rows = rows.v;
    }
    if constexpr (C.scales == kTokenScales) load_scales(tile);
    if constexpr (kStartsByHalves) {
      find_rows(stage);
      start_keys();
      start_values();
    } else if constexpr (kWay == kGatheredBytes) {
      k_loader_.start(stage.k_bytes, k_);
      v_loader_.start(stage.v_bytes, v_);
    } else if constexpr (kWay == kPlainRows) {
      k_loader_.start(stage.k, k_, tile * C.block_n);
      v_loader_.start(stage.v, v_, tile * C.block_n);
    } else {
      k_loader_.start(stage.k, k_);
      v_loader_.start(stage.v, v_);
    }
  }

  /// As KvPipeline's. Places of the next tile, if there is one, are shared by the same barrier.
  TILEWISE_INLINE void wait(Stage& stage, Stage& next_stage, int32_t next) {
    if constexpr (C.stages == 1) Machine::barrier();
    if constexpr (kSelects) leave_keys(stage);
    if constexpr (kWay != kPlainRows) look_ahead(next_stage, next);  // while copies are on their way
    Ops::finish_copies();
    if constexpr (kWay == kGatheredBytes) {
      k_loader_.finish(stage.k, stage.k_bytes);
      v_loader_.finish(stage.v, stage.v_bytes);
    } else if constexpr (!kStartsByHalves) {
      k_loader_.finish(stage.k);
      v_loader_.finish(stage.v);
    }
    if constexpr (C.scales == kTokenScales) finish_scales(stage);
    Machine::barrier();
    if constexpr (kStartsByHalves) find_rows(next_stage);
  }

  TILEWISE_INLINE static auto keys_of_columns(const Stage& stage, int32_t tile) {
    if constexpr (kSelects) {
      return SelectedColumns<Machine>{stage.selected};
    } else {
      return tile * C.block_n;
    }
  }

  /// S *= k_scale, of keys that are multiplied in units of their own.
  template <class Scores>
  TILEWISE_INLINE void scale_scores(Scores& S, const Stage& stage) const {
    if constexpr (C.scales == kNoScales && kUnit == 1.0f) return;
    S.for_each(Machine::lane(), [&](int, int col, auto&& x) {
      if constexpr (C.scales == kTokenScales) {
        x = x * Machine::template load_shared<float>(&stage.k_scale[col]);
      } else {
        x = x * k_scale_;
      }
    });
  }
  /// A weight times the scale of a token may leave f16's range, and one bf16 number keeps less of it than f16 queries
  /// ask for: the sum of two does.
  static constexpr bool kTwoTerms = C.scales == kTokenScales && C.q_type == kF16;
  /// P *= v_scale of tokens. What is not seen stays 0, whatever its scale is.
  template <class Scores>
  TILEWISE_INLINE void scale_weights(Scores& P, const Stage& stage) const {
    if constexpr (C.scales == kTokenScales) {
      P.for_each(Machine::lane(), [&](int, int col, auto&& x) {
        x = x == 0.0f ? 0.0f : x * Machine::template load_shared<float>(&stage.v_scale[col]);
      });
    }
  }
  /// Columns to their places, and O *= v_scale of a block's whole stream, or the unit of its values.
  template <class Out>
  TILEWISE_INLINE void finish_out(Out& O) const {
    if constexpr (kStartsByHalves) Stage::Values::Held::order_columns(O);
    if constexpr (C.scales != kBlockScale && kUnit == 1.0f) return;
    O.for_each(0, [&](int, int, auto&& x) { x = x * v_scale_; });
  }

 private:
  template <class Params, class Queries, class Columns>
  TILEWISE_INLINE void open_head(const Params& p, int64_t cache_row, const Queries& queries, const Columns& columns) {
    const int64_t head = uniform<Machine>(queries.head_k());
    const auto head_of = [&](const Tensor4& t, int64_t first_col) {
      const int64_t row = C.page_size == 0 ? cache_row * t.batch_stride : 0;
      const auto* const data = elements_of<C.cache_type>(t) + row + head * t.head_stride + first_col;
      return HeadOfCache{data, t.batch_stride, t.seq_stride};
    };
    k_head_ = head_of(p.k, 0);
    v_head_ = head_of(p.v, columns.first());
    k_.cols = static_cast<int32_t>(p.shape.head_dim), v_.cols = static_cast<int32_t>(columns.count(p.shape));
    open_scales(p, cache_row, queries.batch, head);
    if constexpr (kWay != kPlainRows) {
      turn_ = 0;
      k_.anywhere = k_head_.data, v_.anywhere = v_head_.data;
    }
  }
  template <class Params, class Queries>
  TILEWISE_INLINE void open_keys(const Params& p, const CachedSequence& s, const Queries& queries) {
    if constexpr (kWay == kPlainRows) {
      k_.data = k_head_.row(0, s.k_row), v_.data = v_head_.row(0, s.k_row);
      k_.stride = k_head_.place_stride, v_.stride = v_head_.place_stride;
      k_.rows = v_.rows = static_cast<int32_t>(s.seqlen_k);
    } else {
      open_places(p, s, queries);
    }
    first_new_key_ = static_cast<int32_t>(s.cache.cached - s.k_row);
  }

  /// Of any query of the block.
  template <class Params, class Queries>
  TILEWISE_INLINE static KeyRange seen_keys(const Params& p, const Sequence& s, const Queries& queries) {
    const int32_t last_row = minimum(queries.first_row + C.block_m(), queries.used_rows) - 1;
    const int64_t d = diagonal_offset(p.score, s);
    return {visible_keys(p.score, s, d, queries.query(queries.first_row)).begin,
            visible_keys(p.score, s, d, queries.query(last_row)).end};
  }

  template <class Params>
  TILEWISE_INLINE void open_scales(const Params& p, int64_t cache_row, int64_t batch, int64_t head) {
    const auto at = [&](const ScaleTensor& t) { return t.data + batch * t.batch_stride + head * t.head_stride; };
    k_scale_ = v_scale_ = kUnit;
    if constexpr (C.scales == kBlockScale) {
      k_scale_ *= p.k_scale.data ? Machine::load_global(at(p.k_scale)) : p.k_scale.value;
      v_scale_ *= p.v_scale.data ? Machine::load_global(at(p.v_scale)) : p.v_scale.value;
    }
    if constexpr (C.scales == kTokenScales) {
      const int64_t row = C.page_size == 0 ? cache_row : 0;
      k_scales_ = {at(p.k_scale) + row * p.k_scale.row_stride, p.k_scale.row_stride, p.k_scale.place_stride};
      v_scales_ = {at(p.v_scale) + row * p.v_scale.row_stride, p.v_scale.row_stride, p.v_scale.place_stride};
    }
  }

  template <class Params, class Queries>
  TILEWISE_INLINE void open_places(const Params& p, const Sequence& s, const Queries& queries) {
    const KeyRange seen = seen_keys(p, s, queries);
    places_ = {p.cache.block_table + queries.batch * p.cache.block_table_stride, static_cast<int32_t>(s.k_row),
               static_cast<int32_t>(seen.begin), static_cast<int32_t>(seen.end), static_cast<int32_t>(p.cache.rows)};
    if constexpr (kSelects) selection_.open(p, s, queries.batch, queries.head_k(), queries.query(queries.first_row));
  }

  /// A head's part of a cache, or of its tokens' scales.
  template <class Value>
  struct PartOfHead {
    const Value* data;
    int64_t page_stride, place_stride;
    TILEWISE_INLINE const Value* row(int64_t page, int64_t within) const {
      return data + page * page_stride + within * place_stride;
    }
  };
  using HeadOfCache = PartOfHead<ElementBits<C.cache_type>>;
  /// Of this lane's i-th one of a tile's; lanes past the last repeat others'.
  TILEWISE_INLINE static int token_of_lane(int i) { return Machine::thread() % C.block_n + i * kThreads; }

  /// Every lane works out where some of a tile's tokens lie, and leaves that where all find it after a barrier. Pages
  /// were looked up a tile ahead: copies that wait for entries of a table took more than twice as long (1,136 us
  /// instead of 522 for 64 sequences of 8,192 keys on an H200).
  TILEWISE_INLINE void look_ahead(Stage& stage, int32_t tile) {
    if constexpr (skips_tiles<C>()) {
      if (tile != this->held_tile) look_up_pages(tile);
    }
    turn_ = (turn_ + 1) % places_a_stage(C);
    auto& rows = stage.rows[turn_];
    TILEWISE_UNROLL
    for (int i = 0; i < kTokensALane; ++i) {
      const int token = token_of_lane(i);
      const int32_t key = kSelects ? held_keys_[i] : tile * C.block_n + token;
      const int64_t page = held_pages_[i], within = places_.within_page(places_.place_of(key));
      const bool is_key = !kSelects || selection_.is_key(key);
      if (Machine::thread() + i * kThreads < C.block_n) {
        Machine::store_shared(&rows.k[token], is_key ? k_head_.row(page, within) : nullptr);
        Machine::store_shared(&rows.v[token], is_key ? v_head_.row(page, within) : nullptr);
      }
      shared_pages_[i] = held_pages_[i];
      shared_keys_[i] = key;
    }
    look_up_pages(tile + 1);
  }
  /// Of the tile whose places were shared last, for loads that come later.
  TILEWISE_INLINE void find_rows(const Stage& stage) {
    k_loader_.find(stage.rows[turn_].k);
    v_loader_.find(stage.rows[turn_].v);
    keep_order<Machine>();
  }
  /// Of the tile whose places were shared last. Those of new keys stand there once the step before has written them.
  TILEWISE_INLINE void load_scales(int32_t tile) {
    TILEWISE_UNROLL
    for (int i = 0; i < kTokensALane; ++i) {
      const int32_t key = kSelects ? shared_keys_[i] : tile * C.block_n + token_of_lane(i);
      const int64_t page = shared_pages_[i], within = places_.within_page(places_.place_of(key));
      held_k_[i] = Machine::load_global(k_scales_.row(page, within));
      held_v_[i] = Machine::load_global(v_scales_.row(page, within));
    }
  }
  TILEWISE_INLINE void look_up_pages(int32_t tile) {
    if constexpr (skips_tiles<C>()) this->held_tile = tile;
    TILEWISE_UNROLL
    for (int i = 0; i < kTokensALane; ++i) {
      held_keys_[i] = kSelects ? selected_[i] : tile * C.block_n + token_of_lane(i);
      held_pages_[i] = places_.page_of(places_.place_of(held_keys_[i]));
    }
    if constexpr (kSelects) select(tile + 1);
  }
  /// Asks for a tile's indices, so that pages wait for none.
  TILEWISE_INLINE void select(int32_t tile) {
    TILEWISE_UNROLL
    for (int i = 0; i < kTokensALane; ++i) selected_[i] = selection_.key(tile * C.block_n + token_of_lane(i));
  }
  TILEWISE_INLINE void leave_keys(Stage& stage) const {
    TILEWISE_UNROLL
    for (int i = 0; i < kTokensALane; ++i) {
      const int token = Machine::thread() + i * kThreads;
      if (token < C.block_n) Machine::store_shared(&stage.selected[token], shared_keys_[i]);
    }
  }

  TILEWISE_INLINE void finish_scales(Stage& stage) const {
    TILEWISE_UNROLL
    for (int i = 0; i < kTokensALane; ++i) {
      const int token = Machine::thread() + i * kThreads;
      if (token >= C.block_n) break;
      Machine::store_shared(&stage.k_scale[token], kUnit * held_k_[i]);
      Machine::store_shared(&stage.v_scale[token], held_v_[i]);
    }
  }

  static constexpr bool kTight = has_few_registers<Ops>(C);
  static constexpr int kHeldType = kWay == kOperandTiles ? C.cache_type : C.k_type;
  static constexpr float kUnit = kUnitOf<Machine, kHeldType>;
  static constexpr int kTokensALane = ceil_div(C.block_n, kThreads);
  Rows k_, v_;
  float k_scale_, v_scale_;
  PartOfHead<float> k_scales_, v_scales_;
  float held_k_[kTokensALane], held_v_[kTokensALane];
  CachePlaces<Machine, C.page_size> places_;
  HeadOfCache k_head_, v_head_;
  // Of the tile whose places were shared last, and of the one after it.
  int32_t shared_keys_[kTokensALane], held_keys_[kTokensALane], shared_pages_[kTokensALane], held_pages_[kTokensALane];
  int32_t selected_[kTokensALane];  // of the tile after that one
  KeySelection<Machine> selection_;
  int32_t first_new_key_;
  int32_t turn_;  // which of a stage's places are those shared last
  bool early_;    // a tile was asked for by begin_early()
  template <class Tile>
  using Loader = typename ChooseLoader<kWay, Ops, C, Tile, Rows, kTight>::Type;
  Loader<decltype(Stage::k)> k_loader_;
  Loader<decltype(Stage::v)> v_loader_;
};

}  // namespace tilewise::device
