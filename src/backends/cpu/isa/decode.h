// Attention of a few rows (decode): keys and values are read once, straight from the caller's
// rows, since packing them would cost more than the products. The aim is memory bandwidth.
#pragma once

#include <stdint.h>

#include "backends/cpu/isa/arena.h"
#include "backends/cpu/isa/decode_products.h"
#include "backends/cpu/isa/key_places.h"
#include "backends/cpu/isa/output.h"
#include "backends/cpu/isa/pack.h"
#include "backends/cpu/isa/weigh.h"

namespace tilewise::backends::cpu {

/// Queries in In; keys and values in Stored, which is In too, or fp8 with scales of its own.
template <class C, class In, class Stored = In>
class Decode {
  using V = typename C::V;
  using F = typename V::F;
  using Real = typename V::Real;
  using Weigher = Weigh<C, C::template precision<In>()>;
  using Products = DecodeProducts<C, In, Stored>;
  static constexpr int64_t kKeys = Products::kKeys;  // a block of keys that lie where a table says
  static constexpr int64_t kStridedKeys = 32;        // and of others: 8 heads of 128 dims take 128 KiB in bf16
  static constexpr int64_t kDepth = Products::kDepth, kElements = Products::kElements, kWidth = Products::kWidth;
  static constexpr int64_t kQuad = Products::kQuad, kColumns = Products::kColumns, kPace = Products::kPace;
  static constexpr bool kScaled = sizeof(Stored) == 1;
  static constexpr int64_t kValuesAhead = kStridedKeys * 3 / 4;  // they are read after the keys: not a whole block
  // Bytes requested before they are read: enough for memory to answer, and a fourth of the smallest first cache.
  static constexpr int64_t kRequested = 8 << 10, kMostSteps = 4;

  using Places = KeyPlaces<V, kKeys>;
  using Order = typename Products::Order;
  using Visited = PlacedRows<Stored, Products::kTogether>;
  static constexpr Order kOrder{};
  static constexpr int64_t kPortion = Order::kPortion;

 public:
  static constexpr int32_t kMaxRows = 16, kBlockKeys = kStridedKeys;

  static size_t scratch_bytes(int32_t head_dim, int32_t head_dim_v) {
    return Scratch(nullptr, kMaxRows, head_dim, head_dim_v).bytes;
  }

  static void run(const ForwardTile* tiles, int32_t num_tiles, const KeyStream& stream, void* scratch) {
    const int32_t rows = tiles->num_rows;
    RowFunctions<V>::start(tiles->score.functions);
    const Scratch w(scratch, int64_t{num_tiles} * rows, tiles->head_dim, tiles->head_dim_v);
    for (int32_t n = 0; n < num_tiles * rows; ++n) {
      Real* q = w.q + n * w.ldq;
      V::store(q + w.ldq - V::kLanes, V::zero());  // padding of up to a vector
      pack_row<C>(static_cast<const In*>(tiles[n / rows].rows[n % rows].q), tiles->head_dim, q);
      for (int64_t unit = 0; unit < w.ldq; unit += kDepth) C::order_depth(q + unit);
      Weigher::RowSoftmax::start(w.states[n]);
    }
    __builtin_memset(w.out, 0, static_cast<size_t>(num_tiles * rows * w.ldo) * sizeof(Real));
    if (tiles->head_dim % (kDepth * C::kPair) == 0 && tiles->head_dim_v % kWidth == 0)
      visit_whole(tiles, num_tiles, stream, w);
    else
      visit_placed(tiles, num_tiles, stream, w, false);
    for (int64_t column = 0; column < num_tiles * rows * w.ldo; column += kElements) C::order_row(w.out + column);
    for (int32_t n = 0; n < num_tiles; ++n)
      write_output<V, In>(tiles[n], w.out + n * rows * w.ldo, w.ldo, w.states + n * rows);
  }

 private:
  /// Of all tiles: rows one after the other.
  struct Scratch {
    int64_t ldq, ldo;
    Real *q, *scores, *probabilities, *out, *k_scales = nullptr, *v_scales = nullptr;
    RowState<V>* states;
    uint16_t* draws;
    size_t bytes;

    Scratch(void* base, int64_t rows, int64_t head_dim, int64_t head_dim_v) {
      Arena<V> arena(base);
      ldq = round_up(depth_units<C>(head_dim), kDepth);
      ldo = round_up(head_dim_v, kElements);
      q = arena.reals(rows * ldq);
      scores = arena.reals(rows * kKeys);
      probabilities = arena.reals(rows * kKeys / C::kPair);
      out = arena.reals(rows * ldo);
      if constexpr (kScaled) {  // of each tile, which has a row at least
        k_scales = arena.reals(rows * kKeys);
        v_scales = arena.reals(rows * kKeys);
      }
      states =
          reinterpret_cast<RowState<V>*>(arena.reals(rows * static_cast<int64_t>(sizeof(RowState<V>) / sizeof(Real))));
      draws = reinterpret_cast<uint16_t*>(arena.reals(round_up(kKeys, Dropout<V>::kKeys) / 2));
      bytes = arena.used();
    }
  };

  /// Of a tile's keys of a block; null where they have none.
  struct Scales {
    const Real *k, *v;
  };

  TILEWISE_INLINE static int64_t distance(const void* from, const void* to) {
    return static_cast<const char*>(to) - static_cast<const char*>(from);
  }

  static void visit_whole(const ForwardTile* tiles, int32_t num_tiles, const KeyStream& stream, const Scratch& w) {
    if constexpr (!kScaled) {
      const PageTable& table = stream.table;
      // A pair of values may begin before the keys that are read, where a page's may never have been written.
      const bool whole_blocks = C::kPair == 1 && table.page_size % kStridedKeys == 0;
      if (table.pages == nullptr || whole_blocks) return visit_strided(tiles, num_tiles, stream, w);
    }
    visit_placed(tiles, num_tiles, stream, w, true);
  }

  /// From a stream's key 0 or page 0 to `key`, whose block of kStridedKeys is plainly a stride apart.
  TILEWISE_INLINE static int64_t place(const PageTable& table, int64_t page_stride, int64_t stride, int64_t key) {
    if (table.pages == nullptr) return key * stride;
    return table.pages[key / table.page_size] * page_stride + key % table.page_size * stride;
  }

  /// Keys that are plainly a stride apart, all or those of a page: the table of places would cost 5%, and 20% with one
  /// head of 64 dims.
  static void visit_strided(const ForwardTile* tiles, int32_t num_tiles, const KeyStream& stream, const Scratch& w) {
    const ForwardTile& t = *tiles;
    const PageTable& table = stream.table;
    const int64_t quads = (t.num_rows + kQuad - 1) / kQuad;
    const int64_t key_steps = kStridedKeys / kColumns * ((w.ldq / V::kLanes + kPace - 1) / kPace);
    const int64_t value_steps = kStridedKeys / C::kPair / kPace * ((t.head_dim_v + kWidth - 1) / kWidth);
    const int64_t steps = num_tiles * quads * (key_steps + value_steps);
    FetchBoth fetch{{stream.k_stride, stream.k_bytes}, {stream.v_stride, stream.v_bytes}};
    const auto start = [&](FetchAhead& of, const void* rows, int64_t page_stride, int64_t stride, int64_t first) {
      const int64_t count = stream.end - first < kStridedKeys ? stream.end - first : kStridedKeys;
      const char* const from = static_cast<const char*>(rows);
      of.start(count > 0 ? from + place(table, page_stride, stride, first) : from, count, steps);
    };
    const int64_t values_ahead = table.pages == nullptr ? kValuesAhead : kStridedKeys;  // a block's are in one page
    const int32_t last = num_tiles - 1;
    int64_t key = t.key_begin / kStridedKeys * kStridedKeys;
    const auto keys_at = [&](int64_t at) { return place(table, table.k_stride, stream.k_stride, at); };
    for (int64_t k_at = key < t.key_end ? keys_at(key) : 0, next_at = 0; key < t.key_end;
         key += kStridedKeys, k_at = next_at) {
      const int64_t v_at = place(table, table.v_stride, stream.v_stride, key), next_key = key + kStridedKeys;
      next_at = next_key < stream.end ? keys_at(next_key) : k_at;
      const int64_t begin = t.key_begin > key ? t.key_begin - key : 0;
      const int64_t end = t.key_end - key < kStridedKeys ? t.key_end - key : kStridedKeys;
      start(fetch.k, stream.k, table.k_stride, stream.k_stride, next_key);
      start(fetch.v, stream.v, table.v_stride, stream.v_stride, key + values_ahead);
      // After the last head's keys come the first one's values, and after those the next block's keys.
      const bool alike = stream.k_stride == stream.v_stride;
      const int64_t from_keys = alike ? distance(tiles[last].k, t.v) + v_at - k_at : 0;
      const int64_t from_values = alike ? distance(tiles[last].v, t.k) + next_at - v_at : 0;
      const auto rows = [&](const void* first, int64_t at, int64_t stride, int64_t skipped, int64_t size,
                            int64_t next) {
        const char* origin = static_cast<const char*>(first) + at + skipped * stride;
        return StridedRows<Stored>{origin, stride, t.seqlen_k - key - skipped, size, end - skipped, next, &fetch};
      };
      const int64_t key_skipped = begin / kColumns * kColumns, value_skipped = begin / C::kPair * C::kPair;
      // Head after head, but all keys before all values: a block of either is read from one place.
      for (int32_t n = 0; n < num_tiles; ++n) {
        const int64_t next = n < last ? distance(tiles[n].k, tiles[n + 1].k) : from_keys;
        scores_of(true, t, w, n, key_skipped, rows(tiles[n].k, k_at, stream.k_stride, key_skipped, t.head_dim, next));
      }
      for (int32_t n = 0; n < num_tiles; ++n) weigh_rows(tiles[n], w, n * t.num_rows, key, end, {});
      for (int32_t n = 0; n < num_tiles; ++n) {
        const int64_t next = n < last ? distance(tiles[n].v, tiles[n + 1].v) : from_values;
        add_values_of(true, t, w, n, value_skipped,
                      rows(tiles[n].v, v_at, stream.v_stride, value_skipped, t.head_dim_v, next));
      }
    }
  }

  /// One block of keys that lie where a table says, of a call's: portion after portion of it, and head after head.
  struct Block {
    const ForwardTile* tiles;
    int64_t num_tiles;
    const Places& places;
    const int8_t* order;
    int64_t begin, end;  // of its keys those to visit
    int64_t ahead;       // steps between a request and its use, each of a portion of one head
    bool more;           // whether there is a block after it

    /// What comes `ahead` steps after portion `portion` of head n. After the keys come the values, and after those the
    /// next block's keys; the last steps of all have their own rows.
    [[nodiscard]] TILEWISE_INLINE RowList later(int64_t portion, int64_t n, bool values) const {
      int64_t later_portion = portion, later_n = n + ahead;
      for (; later_n >= num_tiles; later_n -= num_tiles) ++later_portion;
      if (later_portion < Order::kPortions) return rows(later_portion, later_n, values, false);
      if (values && !more) return rows(portion, n, values, false);
      return rows(later_portion - Order::kPortions, later_n, !values, values);
    }
    [[nodiscard]] TILEWISE_INLINE RowList rows(int64_t portion, int64_t n, bool values, bool next) const {
      const auto stream = values ? Places::kV : Places::kK;
      const char* first = static_cast<const char*>(values ? tiles[n].v : tiles[n].k) + places.origin(stream);
      const int64_t skipped = portion * kPortion;
      return next ? RowList{first + places.step(stream), places.ahead(stream), kOrder.whole + skipped}
                  : RowList{first, places.block(stream), order + skipped};
    }
    /// Those to visit, from one of a multiple of `multiple` on.
    [[nodiscard]] TILEWISE_INLINE Visited visit(int64_t portion, int64_t n, bool values, int64_t size,
                                                int64_t multiple) const {
      const int64_t left = end - portion * kPortion;
      Visited to_visit{rows(portion, n, values, false), later(portion, n, values), size,
                       left < kPortion ? left : kPortion};
      const int64_t skipped = (begin - portion * kPortion) / multiple * multiple;
      if (skipped > 0) {
        to_visit.now.order += skipped;
        to_visit.later.order += skipped;
        to_visit.count -= skipped;
      }
      return to_visit;
    }
  };

  static void visit_placed(const ForwardTile* tiles, int32_t num_tiles, const KeyStream& stream, const Scratch& w,
                           bool whole) {
    const ForwardTile& t = *tiles;
    Places places(stream, t.key_begin, t.key_end);
    const int64_t portion_bytes = kPortion * t.head_dim * int64_t{sizeof(Stored)};
    const int64_t steps = kRequested / portion_bytes, ahead = steps < 1 ? 1 : steps > kMostSteps ? kMostSteps : steps;
    for (int64_t key = t.key_begin / kKeys * kKeys; key < t.key_end; key += kKeys) {
      const int64_t begin = t.key_begin > key ? t.key_begin - key : 0;
      const int64_t end = t.key_end - key < kKeys ? t.key_end - key : kKeys;
      places.move_to(key);
      // Without pages the table is this block's, moved on: right for a whole one.
      const bool more = key + (places.paged() ? kKeys : 2 * kKeys - 1) < stream.end;
      const int8_t* order = end - begin == kKeys ? kOrder.whole : kOrder.ascending;
      const Block block{tiles, num_tiles, places, order, begin, end, ahead, more};
      const bool scaled = kScaled && stream.k_scales.scales != nullptr;
      if (scaled) {
        take_scales(stream.k_scales, places, Places::kKScale, num_tiles, begin, end, w.k_scales);
        take_scales(stream.v_scales, places, Places::kVScale, num_tiles, begin, end, w.v_scales);
      }
      if (more) request_quarters(stream, places);
      const int64_t first = begin / kPortion, last = (end + kPortion - 1) / kPortion;
      for (int64_t portion = first; portion < last; ++portion)
        for (int32_t n = 0; n < num_tiles; ++n)
          scores_of(whole, t, w, n, 0, block.visit(portion, n, false, t.head_dim, kColumns));
      for (int32_t n = 0; n < num_tiles; ++n) {
        const Scales scales{scaled ? w.k_scales + n * kKeys : nullptr, scaled ? w.v_scales + n * kKeys : nullptr};
        weigh_rows(tiles[n], w, n * t.num_rows, key, end, scales);
      }
      for (int64_t portion = first; portion < last; ++portion)
        for (int32_t n = 0; n < num_tiles; ++n)
          add_values_of(whole, t, w, n, 0, block.visit(portion, n, true, t.head_dim_v, C::kPair));
    }
  }

  /// The first row of each quarter of the next block: of small pages the processor has yet to look up where in memory
  /// they are, which holds up all that follows. Side by side the lookups take no longer than one: 5% of fp8's time.
  TILEWISE_INLINE static void request_quarters(const KeyStream& stream, const Places& places) {
    const auto next = [&](const void* rows, typename Places::Stream which) {
      return static_cast<const char*>(rows) + places.origin(which) + places.step(which);
    };
    const char *k = next(stream.k, Places::kK), *v = next(stream.v, Places::kV);
    for (int64_t j = 0; j < kKeys; j += kKeys / Order::kQuarters) {
      __builtin_prefetch(k + places.ahead(Places::kK)[j], 0, 2);
      __builtin_prefetch(v + places.ahead(Places::kV)[j], 0, 2);
    }
  }

  /// The scales of a block's keys [begin, end), head after head, and 1 for the others, whose weights stay 0 by that.
  /// The next block's are requested. Before the products, not after: whole vectors of what was stored one by one are
  /// not there to be loaded at once.
  [[gnu::noinline]] static void take_scales(const TokenScales& from, const Places& places,
                                            typename Places::Stream stream, int64_t heads, int64_t begin, int64_t end,
                                            Real* to) {
    if (end - begin < kKeys)
      for (int64_t n = 0; n < heads * kKeys; n += V::kLanes) V::store(to + n, V::set1(1.0f));
    const float* origin = from.scales + places.origin(stream);
    const float* next = origin + places.step(stream);
    const int64_t *block = places.block(stream), *ahead = places.ahead(stream);
    for (int64_t j = begin; j < end; ++j) __builtin_prefetch(next + ahead[j], 0, 3);
    constexpr int64_t kEight = 8;  // adjacent heads at once
    const int64_t in_eights = from.head_stride == 1 ? heads / kEight * kEight : 0;
    for (int64_t j = begin; j < end; ++j) {
      const float* scales = origin + block[j];
      for (int64_t n = 0; n < in_eights; n += kEight)
#pragma GCC unroll 8
        for (int64_t h = n; h < n + kEight; ++h) to[h * kKeys + j] = scales[h];
      for (int64_t n = in_eights; n < heads; ++n) to[n * kKeys + j] = scales[n * from.head_stride];
    }
  }

  /// Of tile n, with keys from `column` of the block on.
  template <class Rows>
  TILEWISE_INLINE static void scores_of(bool whole, const ForwardTile& t, const Scratch& w, int64_t n, int64_t column,
                                        const Rows& keys) {
    const Real* const q = w.q + n * t.num_rows * w.ldq;
    Real* const scores = w.scores + n * t.num_rows * kKeys + column;
    whole ? Products::template score<true>(t.num_rows, keys, q, w.ldq, scores)
          : Products::template score<false>(t.num_rows, keys, q, w.ldq, scores);
  }
  template <class Rows>
  TILEWISE_INLINE static void add_values_of(bool whole, const ForwardTile& t, const Scratch& w, int64_t n,
                                            int64_t column, const Rows& values) {
    const Real* const weights = w.probabilities + (n * t.num_rows * kKeys + column) / C::kPair;
    Real* const out = w.out + n * t.num_rows * w.ldo;
    whole ? Products::template add<true>(t.num_rows, values, weights, out, w.ldo)
          : Products::template add<false>(t.num_rows, values, weights, out, w.ldo);
  }

  static void weigh_rows(const ForwardTile& t, const Scratch& w, int64_t first, int64_t key, int64_t end,
                         const Scales& scales) {
    const KeySpan span{key, round_up(end, 2 * V::kLanes), t.seqlen_k - key, false};
    for (int32_t r = 0; r < t.num_rows; ++r) {
      const int64_t row = first + r;
      Real* scores = w.scores + row * kKeys;
      if (scales.k)
        for (int64_t j = 0; j < kKeys; j += V::kLanes)
          V::store(scores + j, V::mul(V::load(scores + j), V::load(scales.k + j)));
      const Real rescale = Weigher::row(t.rows[r], t.score, span, scores, w.states[row],
                                        w.probabilities + row * (kKeys / C::kPair), w.draws, scales.v);
      if (rescale != 1.0f) Scores<V>::multiply(w.out + row * w.ldo, w.ldo, rescale);
    }
  }
};

}  // namespace tilewise::backends::cpu
