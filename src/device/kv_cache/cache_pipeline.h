// The streamed side of attention over a cache: tiles of a key head's keys and values, from places in a row or from
// pages, and the scales of fp8 elements.
#pragma once

#include "device/attention/block_queries.h"
#include "device/attention/kv_pipeline.h"
#include "device/kv_cache/config.h"
#include "device/kv_cache/sequence.h"
#include "device/tile/gather_loader.h"

namespace tilewise::device {

/// Where keys (or values) of a block lie. Those that none of its queries sees repeat one that is seen, so that no
/// entry of a table is read that no key needs.
template <class Machine, int Element, int kPageSize>
struct CacheRows {
  static constexpr int kElement = Element;
  using Bits = ElementBits<Element>;
  const Bits* data;                        // place 0 of the head; contiguous: of the sequence too
  int64_t page_stride, place_stride;       // in elements
  const int32_t* block_table;              // of the sequence
  int32_t first_place, begin, end, pages;  // keys [begin, end) are seen, key 0 at first_place; pages of the cache
  int32_t cols;

  TILEWISE_INLINE int32_t place_of(int32_t key) const { return first_place + maximum(minimum(key, end - 1), begin); }
  TILEWISE_INLINE int32_t page_of(int32_t place) const {
    return static_cast<int32_t>(clamp_to(Machine::load_global(block_table + place / kPageSize), 0, pages - 1));
  }
  TILEWISE_INLINE const Bits* address(int32_t key) const {
    const int32_t place = place_of(key);
    if constexpr (kPageSize == 0) return data + place * place_stride;
    return data + page_of(place) * page_stride + place % maximum(kPageSize, 1) * place_stride;
  }
};

/// Scales of a tile's tokens, beside its elements.
template <bool kWanted, int kTokens>
struct TileScales {};
template <int kTokens>
struct TileScales<true, kTokens> {
  float k_scale[kTokens], v_scale[kTokens];
};

template <class Ops, auto C>
struct CacheStage : KvStage<Ops, C, kByRows, kByColumns>, TileScales<C.scales == kTokenScales, C.block_n> {};

template <bool kPlain, class Ops, auto C, class Tile, class Rows, bool kTight>
struct ChooseLoader {
  using Type = TileLoader<Ops, C, Tile, kTight>;
};
template <class Ops, auto C, class Tile, class Rows, bool kTight>
struct ChooseLoader<false, Ops, C, Tile, Rows, kTight> {
  using Type = GatherLoader<Ops, C, Tile, Rows, kTight>;
};

/// What KvPipeline is to attention.
template <class Ops, auto C, class Stage>
class CachePipeline {
  using Machine = typename Ops::Machine;
  /// Elements of a tile's own type in places that lie in a row come as attention's do.
  static constexpr bool kPlain = C.page_size == 0 && C.cache_type != kE4m3;
  using Rows = Choose<kPlain, RowSource<C.cache_type>, CacheRows<Machine, C.cache_type, C.page_size>>;
  static constexpr int kThreads = C.waves * Machine::kLanes;

 public:
  template <class Params, class Queries, class Columns>
  TILEWISE_INLINE void open_for(const Params& p, const Sequence& s, const Queries& queries, const Columns& columns) {
    const int64_t head = uniform<Machine>(queries.head_k());
    const CacheSequence cache = cache_sequence_of(p.shape, p.cache, queries.batch);
    const KeyRange seen = seen_keys(p, s, queries);
    const auto open_rows = [&](const Tensor4& t, int64_t first_col, int64_t cols) {
      const int64_t row = C.page_size == 0 ? cache.cache_row * t.batch_stride : 0;
      const auto* const data = elements_of<C.cache_type>(t) + row + head * t.head_stride + first_col;
      if constexpr (kPlain) {
        return Rows{data + s.k_row * t.seq_stride, t.seq_stride, static_cast<int32_t>(s.seqlen_k),
                    static_cast<int32_t>(cols)};
      } else {
        return Rows{data,
                    t.batch_stride,
                    t.seq_stride,
                    p.cache.block_table + queries.batch * p.cache.block_table_stride,
                    static_cast<int32_t>(s.k_row),
                    static_cast<int32_t>(seen.begin),
                    static_cast<int32_t>(seen.end),
                    static_cast<int32_t>(p.cache.rows),
                    static_cast<int32_t>(cols)};
      }
    };
    k_ = open_rows(p.k_cache, 0, p.shape.head_dim);
    v_ = open_rows(p.v_cache, columns.first(), columns.count(p.shape));
    open_scales(p, cache, queries.batch, head);
  }

  TILEWISE_INLINE void start(Stage& stage, int32_t tile) {
    k_loader_.start(stage.k, k_, tile * C.block_n);
    v_loader_.start(stage.v, v_, tile * C.block_n);
    if constexpr (C.scales == kTokenScales) start_scales(tile * C.block_n);
  }

  /// As KvPipeline's.
  TILEWISE_INLINE void wait(Stage& stage) {
    if constexpr (C.stages == 1) Machine::barrier();
    Ops::finish_copies();
    k_loader_.finish(stage.k);
    v_loader_.finish(stage.v);
    if constexpr (C.scales == kTokenScales) finish_scales(stage);
    Machine::barrier();
  }

  /// S *= k_scale.
  template <class Scores>
  TILEWISE_INLINE void scale_scores(Scores& S, const Stage& stage) const {
    if constexpr (C.scales == kNoScales) return;
    S.for_each(Machine::lane(), [&](int, int col, auto&& x) {
      if constexpr (C.scales == kTokenScales) {
        x = x * Machine::template load_shared<float>(&stage.k_scale[col]);
      } else {
        x = x * k_scale_;
      }
    });
  }
  /// P *= v_scale. What is not seen stays 0, whatever its scale is.
  template <class Scores>
  TILEWISE_INLINE void scale_weights(Scores& P, const Stage& stage) const {
    if constexpr (C.scales == kNoScales) return;
    P.for_each(Machine::lane(), [&](int, int col, auto&& x) {
      if constexpr (C.scales == kTokenScales) {
        x = x == 0.0f ? 0.0f : x * Machine::template load_shared<float>(&stage.v_scale[col]);
      } else {
        x = x == 0.0f ? 0.0f : x * v_scale_;
      }
    });
  }

 private:
  /// Of any query of the block.
  template <class Params, class Queries>
  TILEWISE_INLINE static KeyRange seen_keys(const Params& p, const Sequence& s, const Queries& queries) {
    const int32_t last_row = minimum(queries.first_row + C.block_m(), queries.used_rows) - 1;
    const int64_t d = diagonal_offset(p.score, s);
    return {visible_keys(p.score, s, d, queries.query(queries.first_row)).begin,
            visible_keys(p.score, s, d, queries.query(last_row)).end};
  }

  template <class Params>
  TILEWISE_INLINE void open_scales(const Params& p, const CacheSequence& cache, int64_t batch, int64_t head) {
    const auto at = [&](const ScaleTensor& t) { return t.data + batch * t.batch_stride + head * t.head_stride; };
    if constexpr (C.scales == kBlockScale) {
      k_scale_ = p.k_scale.data ? Machine::load_global(at(p.k_scale)) : p.k_scale.value;
      v_scale_ = p.v_scale.data ? Machine::load_global(at(p.v_scale)) : p.v_scale.value;
    }
    if constexpr (C.scales == kTokenScales) {
      const int64_t row = C.page_size == 0 ? cache.cache_row : 0;
      k_scales_ = {at(p.k_scale) + row * p.k_scale.row_stride, p.k_scale.row_stride, p.k_scale.place_stride};
      v_scales_ = {at(p.v_scale) + row * p.v_scale.row_stride, p.v_scale.row_stride, p.v_scale.place_stride};
    }
  }

  struct Scales {
    const float* data;
    int64_t page_stride, place_stride;
    TILEWISE_INLINE float load(int64_t page, int64_t place) const {
      return Machine::load_global(data + page * page_stride + place * place_stride);
    }
  };

  TILEWISE_INLINE void start_scales(int32_t first_key) {
    TILEWISE_UNROLL
    for (int i = 0; i < kScalesALane; ++i) {
      const int32_t place = k_.place_of(first_key + Machine::thread() % C.block_n + i * kThreads);
      int32_t page = 0, within = place;
      if constexpr (C.page_size != 0) page = k_.page_of(place), within = place % C.page_size;
      held_k_[i] = k_scales_.load(page, within);
      held_v_[i] = v_scales_.load(page, within);
    }
  }
  TILEWISE_INLINE void finish_scales(Stage& stage) const {
    TILEWISE_UNROLL
    for (int i = 0; i < kScalesALane; ++i) {
      const int token = Machine::thread() + i * kThreads;
      if (token >= C.block_n) break;
      Machine::store_shared(&stage.k_scale[token], held_k_[i]);
      Machine::store_shared(&stage.v_scale[token], held_v_[i]);
    }
  }

  static constexpr bool kTight = has_few_registers<Ops>(C);
  static constexpr int kScalesALane = ceil_div(C.block_n, kThreads);
  Rows k_, v_;
  float k_scale_, v_scale_;
  Scales k_scales_, v_scales_;
  float held_k_[kScalesALane], held_v_[kScalesALane];
  template <class Tile>
  using Loader = typename ChooseLoader<kPlain, Ops, C, Tile, Rows, kTight>::Type;
  Loader<decltype(Stage::k)> k_loader_;
  Loader<decltype(Stage::v)> v_loader_;
};

/// A part of the columns of v and out where rows are too wide for a wave's accumulators: as many blocks compute the
/// same weights. A grid's heads are parts of heads then.
template <auto C>
class ColumnShare {
 public:
  TILEWISE_INLINE explicit ColumnShare(GridPlace& place) : first_(place.head % C.v_parts * C.head_dim_v) {
    place.head /= C.v_parts;
  }
  TILEWISE_INLINE int32_t first() const { return first_; }
  TILEWISE_INLINE int64_t count(const AttentionShape& shape) const {
    return minimum<int64_t>(C.head_dim_v, shape.head_dim_v - first_);
  }

 private:
  int32_t first_;
};

template <bool kShared, auto C>
struct ChooseColumns {
  using Type = WholeRows;
};
template <auto C>
struct ChooseColumns<true, C> {
  using Type = ColumnShare<C>;
};

/// See AttentionCall.
struct KvCacheCall {
  using Forward = KvCacheForwardParams;
  using Combine = KvCacheCombineParams;
  template <auto C, class Params>
  TILEWISE_INLINE static Sequence sequence_at(const Params& p, int64_t batch) {
    return attended_sequence(p.shape, p.cache, batch);
  }
  template <auto C>
  using Columns = typename ChooseColumns<(C.v_parts > 1), C>::Type;
  template <class Ops, auto C>
  using Stage = CacheStage<Ops, C>;
  template <class Ops, auto C, class Stage>
  using Pipeline = CachePipeline<Ops, C, Stage>;
};

}  // namespace tilewise::device
