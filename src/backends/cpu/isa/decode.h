// Attention of a few rows (decode): keys and values are read once, straight from the caller's
// rows, since packing them would cost more than the products. The aim is memory bandwidth.
#pragma once

#include <stdint.h>

#include "backends/cpu/isa/arena.h"
#include "backends/cpu/isa/fetch_ahead.h"
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
  static constexpr int64_t kKeys = KeyPlaces::kKeys;  // a block of 8 heads of 128 dims: 128 KiB in bf16
  static constexpr int64_t kDepth = int64_t{V::kLanes} * C::kKeyVectors;       // units of a key loaded at once
  static constexpr int64_t kElements = int64_t{V::kLanes} * C::kValueVectors;  // columns of values
  static constexpr int64_t kQuad = 4;                                          // rows computed together
  static constexpr int64_t kColumns = V::kLanes / kQuad;                       // and keys: a vector of scores
  static constexpr int64_t kChunk = 4;  // output vectors held in registers: times 4 rows, 16 accumulators
  static constexpr int64_t kWidth = kChunk * V::kLanes;
  // Vectors between two steps of the fetchers, and between two requests for one line.
  static constexpr int64_t kPace = 16 / V::kLanes * int64_t{sizeof(In) / sizeof(Stored)};
  static constexpr bool kScaled = sizeof(Stored) == 1;
  static constexpr int64_t kValuesAhead = kKeys * 3 / 4;  // they are read after the keys: no need for a whole block

 public:
  static constexpr int32_t kMaxRows = 16, kBlockKeys = kKeys;

  static size_t scratch_bytes(int32_t head_dim, int32_t head_dim_v) {
    return Scratch(nullptr, kMaxRows, head_dim, head_dim_v).bytes;
  }

  static void run(const ForwardTile* tiles, int32_t num_tiles, const KeyStream& stream, void* scratch) {
    const int32_t rows = tiles->num_rows;
    const Scratch w(scratch, int64_t{num_tiles} * rows, tiles->head_dim, tiles->head_dim_v);
    for (int32_t n = 0; n < num_tiles * rows; ++n) {
      Real* q = w.q + n * w.ldq;
      V::store(q + w.ldq - V::kLanes, V::zero());  // padding of up to a vector
      pack_row<C>(static_cast<const In*>(tiles[n / rows].rows[n % rows].q), tiles->head_dim, q);
      for (int64_t unit = 0; unit < w.ldq; unit += kDepth) C::order_depth(q + unit);
      V::store(w.states[n].sum, V::zero());
      w.states[n].reference = kNegativeInfinity;
    }
    __builtin_memset(w.out, 0, static_cast<size_t>(num_tiles * rows * w.ldo) * sizeof(Real));
    if (tiles->head_dim % (kDepth * C::kPair) == 0 && tiles->head_dim_v % kWidth == 0)
      visit_whole(tiles, num_tiles, stream, w);
    else
      visit_keys<false, false>(tiles, num_tiles, stream, w);
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

  /// Both streams, which go on together.
  template <bool kStrided>
  struct Fetchers {
    FetchAhead<kStrided> k, v;

    TILEWISE_INLINE void step() {
      k.step();
      v.step();
    }
  };

  /// The keys of a block, or their values, of one head.
  struct Rows {
    const char* origin;
    const int64_t* places;  // of each row, in bytes from the origin
    int64_t size, count;    // of a row; of rows to visit
    int64_t stride, exist;  // without the table: bytes between rows; rows there are
    int64_t next;           // bytes from a row to the one that its turn comes to next, 0: not to be requested

    template <bool kStrided>
    [[nodiscard]] TILEWISE_INLINE const Stored* row(int64_t j) const {
      return reinterpret_cast<const Stored*>(origin + (kStrided ? j * stride : places[j]));
    }
    /// The same, or the last one there is: the table has none but such.
    template <bool kStrided>
    [[nodiscard]] TILEWISE_INLINE const Stored* row_there(int64_t j) const {
      return row<kStrided>(kStrided && j >= exist ? exist - 1 : j);
    }
    template <bool kStrided>
    TILEWISE_INLINE void skip(int64_t rows) {
      if constexpr (kStrided)
        origin += rows * stride;
      else
        places += rows;
      count -= rows;
      exist -= rows;
    }
    /// What was requested and forgotten would stall for hundreds of cycles when it is read: requested
    /// once more, a head ahead, it costs less than a cycle a line.
    TILEWISE_INLINE void request(const Stored* at) const {
      if (next != 0) __builtin_prefetch(reinterpret_cast<const char*>(at) + next, 0, 2);
    }
  };

  TILEWISE_INLINE static int64_t distance(const void* from, const void* to) {
    return static_cast<const char*>(to) - static_cast<const char*>(from);
  }

  /// The table of places would cost 5% where rows are plainly a stride apart.
  static void visit_whole(const ForwardTile* tiles, int32_t num_tiles, const KeyStream& stream, const Scratch& w) {
    if constexpr (!kScaled) {
      if (stream.table.pages == nullptr) return visit_keys<true, true>(tiles, num_tiles, stream, w);
    }
    visit_keys<true, false>(tiles, num_tiles, stream, w);
  }

  template <bool kWhole, bool kStrided>
  static void visit_keys(const ForwardTile* tiles, int32_t num_tiles, const KeyStream& stream, const Scratch& w) {
    const ForwardTile& t = *tiles;
    const int64_t quads = (t.num_rows + kQuad - 1) / kQuad;
    const int64_t key_steps = kKeys / kColumns * ((w.ldq / V::kLanes + kPace - 1) / kPace);
    const int64_t value_steps = kKeys / C::kPair / kPace * ((t.head_dim_v + kWidth - 1) / kWidth);
    const int64_t steps = num_tiles * quads * (key_steps + value_steps);
    KeyPlaces places(stream, t.key_begin, t.key_end);
    Fetchers<kStrided> fetch{{stream.k, stream.k_stride, stream.k_bytes, stream.end, places.ring(KeyPlaces::kK)},
                             {stream.v, stream.v_stride, stream.v_bytes, stream.end, places.ring(KeyPlaces::kV)}};
    // After the last head's keys come the first one's values, and after those the next block's keys.
    const int32_t last = num_tiles - 1;
    const bool alike = stream.k_stride == stream.v_stride && stream.table.k_stride == stream.table.v_stride;
    const int64_t from_keys = alike ? distance(tiles[last].k, t.v) : 0;
    const int64_t from_values = alike && !places.paged() ? distance(tiles[last].v, t.k) + kKeys * stream.k_stride : 0;
    for (int64_t key = t.key_begin / kKeys * kKeys; key < t.key_end; key += kKeys) {
      const int64_t begin = t.key_begin > key ? t.key_begin - key : 0;
      const int64_t end = t.key_end - key < kKeys ? t.key_end - key : kKeys;
      if constexpr (!kStrided) places.move_to(key);
      fetch.k.start(key + kKeys, kKeys, steps);
      fetch.v.start(key + kValuesAhead, kKeys, steps);
      const bool scaled = kScaled && stream.k_scales.scales != nullptr;
      if (scaled) {
        take_scales(stream.k_scales, places, KeyPlaces::kKScale, num_tiles, begin, end, w.k_scales);
        take_scales(stream.v_scales, places, KeyPlaces::kVScale, num_tiles, begin, end, w.v_scales);
      }
      // Head after head, but all keys before all values: a block of either is read from one place.
      for (int32_t n = 0; n < num_tiles; ++n) {
        const int64_t next = n < last ? distance(tiles[n].k, tiles[n + 1].k) : from_keys;
        Rows keys = rows_of(tiles[n].k, places, KeyPlaces::kK, t.head_dim, end, next);
        if constexpr (kStrided) set_stride(keys, key, stream.k_stride, t.seqlen_k);
        score_block<kWhole, kStrided>(t.num_rows, w, n * t.num_rows, keys, begin, fetch);
      }
      for (int32_t n = 0; n < num_tiles; ++n) {
        const Scales scales{scaled ? w.k_scales + n * kKeys : nullptr, scaled ? w.v_scales + n * kKeys : nullptr};
        weigh_rows(tiles[n], w, n * t.num_rows, key, end, scales);
      }
      for (int32_t n = 0; n < num_tiles; ++n) {
        const int64_t next = n < last ? distance(tiles[n].v, tiles[n + 1].v) : from_values;
        Rows values = rows_of(tiles[n].v, places, KeyPlaces::kV, t.head_dim_v, end, next);
        if constexpr (kStrided) set_stride(values, key, stream.v_stride, t.seqlen_k);
        add_block<kWhole, kStrided>(t.num_rows, w, n * t.num_rows, values, begin, fetch);
      }
    }
  }

  TILEWISE_INLINE static Rows rows_of(const void* first, const KeyPlaces& places, KeyPlaces::Stream stream,
                                      int64_t size, int64_t count, int64_t next) {
    return {static_cast<const char*>(first) + places.origin(stream), places.block(stream), size, count, 0, 0, next};
  }
  /// Of the block at `key`, with places that were never moved on.
  TILEWISE_INLINE static void set_stride(Rows& rows, int64_t key, int64_t stride, int64_t seqlen_k) {
    rows.origin += key * stride;
    rows.stride = stride;
    rows.exist = seqlen_k - key;
  }

  /// The scales of a block's keys [begin, end), head after head, and 1 for the others, whose weights stay 0 by that.
  /// The next block's are requested. Before the products, not after: whole vectors of what was stored one by one are
  /// not there to be loaded at once.
  static void take_scales(const TokenScales& from, const KeyPlaces& places, KeyPlaces::Stream stream, int64_t heads,
                          int64_t begin, int64_t end, Real* to) {
    if (end - begin < kKeys)
      for (int64_t n = 0; n < heads * kKeys; n += V::kLanes) V::store(to + n, V::set1(1.0f));
    const int64_t* block = places.block(stream);
    const float* origin = from.scales + places.origin(stream);
    const int64_t* ahead = places.ahead(stream);
    const float* next = origin + places.step(stream);
    for (int64_t j = begin; j < end; ++j) {
      const float* scales = origin + block[j];
      __builtin_prefetch(next + ahead[j], 0, 2);
      for (int64_t n = 0; n < heads; ++n) to[n * kKeys + j] = scales[n * from.head_stride];
    }
  }

  static void weigh_rows(const ForwardTile& t, const Scratch& w, int64_t first, int64_t key, int64_t end,
                         const Scales& scales) {
    const KeySpan span{key, round_up(end, 2 * V::kLanes), t.seqlen_k - key};
    for (int32_t r = 0; r < t.num_rows; ++r) {
      const int64_t row = first + r;
      Real* scores = w.scores + row * kKeys;
      if (scales.k)
        for (int64_t j = 0; j < kKeys; j += V::kLanes)
          V::store(scores + j, V::mul(V::load(scores + j), V::load(scales.k + j)));
      const Real rescale = Weigh<C, In>::row(t.rows[r], t.score, span, scores, w.states[row],
                                             w.probabilities + row * (kKeys / C::kPair), w.draws, scales.v);
      if (rescale != 1.0f) Scores<V>::multiply(w.out + row * w.ldo, w.ldo, rescale);
    }
  }

  template <bool kWhole, bool kStrided>
  TILEWISE_INLINE static void score_block(int64_t rows, const Scratch& w, int64_t first, Rows k, int64_t begin,
                                          Fetchers<kStrided>& fetch) {
    const int64_t j = begin / kColumns * kColumns;
    k.template skip<kStrided>(j);
    for (int64_t r = 0; r < rows; r += kQuad, k.next = 0) {
      const Real* q = w.q + (first + r) * w.ldq;
      Real* scores = w.scores + (first + r) * kKeys + j;
      switch (rows - r) {
        case 1:
          score_rows<1, kWhole, kStrided>(k, q, w.ldq, scores, fetch);
          break;
        case 2:
          score_rows<2, kWhole, kStrided>(k, q, w.ldq, scores, fetch);
          break;
        case 3:
          score_rows<3, kWhole, kStrided>(k, q, w.ldq, scores, fetch);
          break;
        default:
          score_rows<4, kWhole, kStrided>(k, q, w.ldq, scores, fetch);
          break;
      }
    }
  }

  /// Scores of kRows rows against the keys of a block, a vector of results at a time. Not inlined: its
  /// accumulators need all registers.
  template <int kRows, bool kWhole, bool kStrided>
  [[gnu::noinline]] static void score_rows(const Rows& k, const Real* q, int64_t ldq, Real* scores,
                                           Fetchers<kStrided>& fetch) {
    for (int64_t j = 0; j < k.count; j += kColumns) {
      const Stored* rows[kColumns];
#pragma GCC unroll 4
      for (int c = 0; c < kColumns; ++c) rows[c] = k.template row_there<kStrided>(j + c);
      F acc[V::kLanes];
#pragma GCC unroll 16
      for (int i = 0; i < V::kLanes; ++i) acc[i] = V::zero();
      for (int64_t unit = 0; unit < ldq; unit += kDepth) {
        if (unit / V::kLanes % kPace == 0) fetch.step();
        F row[kRows][C::kKeyVectors];
#pragma GCC unroll 4
        for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 2
          for (int d = 0; d < C::kKeyVectors; ++d) row[i][d] = V::load(q + i * ldq + unit + d * V::kLanes);
#pragma GCC unroll 4
        for (int c = 0; c < kColumns; ++c) {
          F units[C::kKeyVectors];
          C::template load_key<kWhole>(units, rows[c], unit * C::kPair, k.size);
          if (unit / V::kLanes % kPace == 0) k.request(rows[c] + unit * C::kPair);
#pragma GCC unroll 2
          for (int d = 0; d < C::kKeyVectors; ++d)
#pragma GCC unroll 4
            for (int i = 0; i < kRows; ++i) acc[i * kColumns + c] = C::dot(acc[i * kColumns + c], row[i][d], units[d]);
        }
      }
      alignas(64) Real sums[V::kLanes];
      V::store(sums, V::sum_each(acc));
#pragma GCC unroll 4
      for (int i = 0; i < kRows; ++i)
        __builtin_memcpy(scores + i * kKeys + j, sums + i * kColumns, kColumns * sizeof(Real));
    }
  }

  template <bool kWhole, bool kStrided>
  TILEWISE_INLINE static void add_block(int64_t rows, const Scratch& w, int64_t first, Rows v, int64_t begin,
                                        Fetchers<kStrided>& fetch) {
    const int64_t j = begin / C::kPair * C::kPair;
    v.template skip<kStrided>(j);
    for (int64_t r = 0; r < rows; r += kQuad, v.next = 0) {
      const Real* p = w.probabilities + (first + r) * (kKeys / C::kPair) + j / C::kPair;
      Real* out = w.out + (first + r) * w.ldo;
      switch (rows - r) {
        case 1:
          add_values<1, kWhole, kStrided>(v, p, out, w.ldo, fetch);
          break;
        case 2:
          add_values<2, kWhole, kStrided>(v, p, out, w.ldo, fetch);
          break;
        case 3:
          add_values<3, kWhole, kStrided>(v, p, out, w.ldo, fetch);
          break;
        default:
          add_values<4, kWhole, kStrided>(v, p, out, w.ldo, fetch);
          break;
      }
    }
  }

  /// out += probabilities · v for kRows rows and the values of a block.
  template <int kRows, bool kWhole, bool kStrided>
  [[gnu::noinline]] static void add_values(const Rows& v, const Real* p, Real* out, int64_t ldo,
                                           Fetchers<kStrided>& fetch) {
    for (int64_t column = 0; column < v.size; column += kWidth, out += kWidth) {
      F acc[kRows][kChunk];
      const int64_t loads = kWhole ? kChunk / C::kValueVectors : (v.size - column + kElements - 1) / kElements;
#pragma GCC unroll 4
      for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 4
        for (int c = 0; c < kChunk; ++c)
          acc[i][c] = c / C::kValueVectors < loads ? V::load(out + i * ldo + c * V::kLanes) : V::zero();
      for (int64_t key = 0; key < v.count; key += C::kPair) {
        const Stored* row[C::kPair];
#pragma GCC unroll 2
        for (int i = 0; i < C::kPair; ++i) row[i] = v.template row<kStrided>(key + i);
        if (key / C::kPair % kPace == 0) fetch.step();
        F values[kChunk / C::kValueVectors][C::kValueVectors] = {};
#pragma GCC unroll 4
        for (int c = 0; c < kChunk / C::kValueVectors; ++c) {
          const int64_t at = column + c * kElements, size = kWhole ? at + kElements : v.size;
          if (c < loads) C::load_shuffled(values[c], row[0], key + 1 < v.count ? row[C::kPair - 1] : nullptr, at, size);
          if (c % kPace == 0)
            for (int i = 0; i < C::kPair; ++i) v.request(row[i] + at);
        }
#pragma GCC unroll 4
        for (int i = 0; i < kRows; ++i) {
          const F weight = V::set1(p[i * (kKeys / C::kPair) + key / C::kPair]);
#pragma GCC unroll 4
          for (int c = 0; c < kChunk; ++c)
            if (c / C::kValueVectors < loads)
              acc[i][c] = C::dot(acc[i][c], weight, values[c / C::kValueVectors][c % C::kValueVectors]);
        }
      }
#pragma GCC unroll 4
      for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 4
        for (int c = 0; c < kChunk; ++c)
          if (c / C::kValueVectors < loads) V::store(out + i * ldo + c * V::kLanes, acc[i][c]);
    }
  }
};

}  // namespace tilewise::backends::cpu
