// Attention of a few rows (decode): keys and values are read once, straight from the caller's
// rows, since packing them would cost more than the products. The aim is memory bandwidth.
#pragma once

#include <stdint.h>

#include "backends/cpu/isa/arena.h"
#include "backends/cpu/isa/output.h"
#include "backends/cpu/isa/pack.h"
#include "backends/cpu/isa/weigh.h"

namespace tilewise::backends::cpu {

/// Requests the next block's rows of k and v while this one is computed, a few lines at a time
/// and in address order: the hardware sees strided heads only and would fetch too late.
class Fetcher {
 public:
  static constexpr int64_t kLine = 64;

  TILEWISE_INLINE Fetcher(const KeyStream& s, int64_t key, int64_t end)
      : at_(static_cast<const char*>(s.k) + key * s.k_stride),
        stream_(s),
        key_(key),
        rows_(end > key ? end - key : 0),
        left_(rows_),
        bytes_(s.k_bytes),
        stride_(s.k_stride) {}

  TILEWISE_INLINE void advance(int64_t lines) {
    for (; lines > 0 && left_ > 0; --lines) {
      __builtin_prefetch(at_ + offset_, 0, 2);
      offset_ += kLine;
      if (offset_ < bytes_) continue;
      offset_ = 0;
      at_ += stride_;
      if (--left_ == 0 && !values_) {
        values_ = true;
        at_ = static_cast<const char*>(stream_.v) + key_ * stream_.v_stride;
        left_ = rows_;
        bytes_ = stream_.v_bytes;
        stride_ = stream_.v_stride;
      }
    }
  }

 private:
  const char* at_;
  const KeyStream& stream_;
  int64_t key_, rows_, left_, bytes_, stride_, offset_ = 0;
  bool values_ = false;
};

template <class C, class In>
class Decode {
  using V = typename C::V;
  using F = typename V::F;
  static constexpr int64_t kKeys = C::kPair == 2 ? 64 : 32;  // a block of 8 heads of 128 dims: 256 KiB
  static constexpr int64_t kElements = int64_t{V::kLanes} * C::kPair;
  static constexpr int64_t kChunk = 4;  // output vectors held in registers: times 4 rows, 16 accumulators

 public:
  static constexpr int32_t kMaxRows = 16, kBlockKeys = kKeys;

  static size_t scratch_bytes(int32_t head_dim, int32_t head_dim_v) {
    return Scratch(nullptr, head_dim, head_dim_v).bytes;
  }

  static void run(const ForwardTile* tiles, int32_t num_tiles, const KeyStream& stream, void* scratch) {
    const size_t bytes = scratch_bytes(tiles->head_dim, tiles->head_dim_v);
    for (int32_t n = 0; n < num_tiles; ++n) {
      const ForwardTile& t = tiles[n];
      const Scratch w(static_cast<char*>(scratch) + n * bytes, t.head_dim, t.head_dim_v);
      for (int32_t r = 0; r < t.num_rows; ++r) {
        pack_row<C>(static_cast<const In*>(t.rows[r].q), t.head_dim, w.q + r * w.ldq);
        V::store(w.states[r].sum, V::zero());
        w.states[r].reference = kNegativeInfinity;
      }
      __builtin_memset(w.out, 0, static_cast<size_t>(t.num_rows * w.ldo) * sizeof(float));
    }
    const bool whole = tiles->head_dim % kElements == 0 && tiles->head_dim_v % (kChunk * V::kLanes) == 0;
    // Lines the fetcher owes in each of the 2 kKeys visits of a tile (keys, then values), evenly: a
    // core has some two dozen misses in flight, and a burst beyond them only waits.
    const int64_t lines = kKeys * ((stream.k_bytes + Fetcher::kLine - 1) / Fetcher::kLine +
                                   (stream.v_bytes + Fetcher::kLine - 1) / Fetcher::kLine);
    const int64_t visits = 2 * kKeys * num_tiles, share = (lines + visits - 1) / visits;
    const int64_t end = tiles->key_end;
    for (int64_t key = tiles->key_begin / kKeys * kKeys; key < end; key += kKeys) {
      Fetcher fetcher(stream, key + kKeys, key + 2 * kKeys < stream.end ? key + 2 * kKeys : stream.end);
      for (int32_t n = 0; n < num_tiles; ++n) {
        const Scratch w(static_cast<char*>(scratch) + n * bytes, tiles[n].head_dim, tiles[n].head_dim_v);
        if (whole)
          visit_block<true>(tiles[n], w, key, fetcher, share);
        else
          visit_block<false>(tiles[n], w, key, fetcher, share);
      }
    }
    for (int32_t n = 0; n < num_tiles; ++n) {
      const Scratch w(static_cast<char*>(scratch) + n * bytes, tiles[n].head_dim, tiles[n].head_dim_v);
      for (int64_t column = 0; column < tiles[n].num_rows * w.ldo; column += kElements) C::order_row(w.out + column);
      write_output<V, In>(tiles[n], w.out, w.ldo, w.states);
    }
  }

 private:
  /// load_units, without its check where every vector is whole.
  template <bool kWhole>
  TILEWISE_INLINE static F load_row(const In* row, int64_t begin, int64_t size) {
    if constexpr (kWhole) return C::load_units(row + begin);
    return load_units<C>(row, begin, size);
  }

  struct Scratch {
    int64_t ldq, ldo;
    float *q, *scores, *probabilities, *out;
    RowState<V>* states;
    uint16_t* draws;
    size_t bytes;

    Scratch(void* base, int64_t head_dim, int64_t head_dim_v) {
      Arena<V> arena(base);
      ldq = round_up(depth_units<C>(head_dim), V::kLanes);
      ldo = round_up(head_dim_v, int64_t{V::kLanes} * C::kPair);
      q = arena.floats(kMaxRows * ldq);
      scores = arena.floats(kMaxRows * kKeys);
      probabilities = arena.floats(kMaxRows * kKeys / C::kPair);
      out = arena.floats(kMaxRows * ldo);
      states = reinterpret_cast<RowState<V>*>(
          arena.floats(kMaxRows * static_cast<int64_t>(sizeof(RowState<V>) / sizeof(float))));
      draws = reinterpret_cast<uint16_t*>(arena.floats(round_up(kKeys, Dropout<V>::kKeys) / 2));
      bytes = arena.used();
    }
  };

  template <bool kWhole>
  static void visit_block(const ForwardTile& t, const Scratch& w, int64_t key, Fetcher& fetcher, int64_t share) {
    const int64_t begin = t.key_begin > key ? t.key_begin - key : 0;
    const int64_t end = t.key_end - key < kKeys ? t.key_end - key : kKeys;
    const int64_t columns = round_up(end, 2 * V::kLanes);
    for (int32_t r = 0; r < t.num_rows;) {
      const int32_t left = t.num_rows - r;
      if (left >= 4) {
        score_rows<4, kWhole>(t, w, r, key, begin, end, fetcher, share);
        r += 4;
      } else if (left >= 2) {
        score_rows<2, kWhole>(t, w, r, key, begin, end, fetcher, share);
        r += 2;
      } else {
        score_rows<1, kWhole>(t, w, r, key, begin, end, fetcher, share);
        r += 1;
      }
    }
    for (int32_t r = 0; r < t.num_rows; ++r) {
      const KeySpan span{key, columns, t.seqlen_k - key};
      float* out = w.out + r * w.ldo;
      const float rescale = Weigh<C, In>::row(t.rows[r], t.score, span, w.scores + r * kKeys, w.states[r],
                                              w.probabilities + r * (kKeys / C::kPair), w.draws);
      if (rescale != 1.0f) Scores<V>::multiply(out, w.ldo, rescale);
    }
    const int64_t first = begin / C::kPair, last = (end + C::kPair - 1) / C::kPair;
    for (int32_t r = 0; r < t.num_rows; r += 4) {
      switch (t.num_rows - r) {
        case 1:
          add_values<1, kWhole>(t, w, r, key, first, last, end, fetcher, share);
          break;
        case 2:
          add_values<2, kWhole>(t, w, r, key, first, last, end, fetcher, share);
          break;
        case 3:
          add_values<3, kWhole>(t, w, r, key, first, last, end, fetcher, share);
          break;
        default:
          add_values<4, kWhole>(t, w, r, key, first, last, end, fetcher, share);
          break;
      }
    }
  }

  /// Scores of kRows rows against keys [begin, end) of the block; a vector of results at a time.
  template <int kRows, bool kWhole>
  static void score_rows(const ForwardTile& t, const Scratch& w, int32_t r, int64_t key, int64_t begin, int64_t end,
                         Fetcher& fetcher, int64_t share) {
    constexpr int kColumns = V::kLanes / kRows;
    const In* k = static_cast<const In*>(t.k);
    const float* q = w.q + r * w.ldq;
    const int64_t ahead = (share * kColumns * V::kLanes + w.ldq - 1) / w.ldq;
    for (int64_t j = begin / kColumns * kColumns; j < end; j += kColumns) {
      const In* rows[kColumns];
#pragma GCC unroll 16
      for (int c = 0; c < kColumns; ++c)
        rows[c] = k + (key + j + c < t.seqlen_k ? key + j + c : t.seqlen_k - 1) * t.k_stride;
      F acc[V::kLanes];
#pragma GCC unroll 16
      for (int i = 0; i < V::kLanes; ++i) acc[i] = V::zero();
      for (int64_t unit = 0; unit < w.ldq; unit += V::kLanes) {
        if (r == 0) fetcher.advance(ahead);
        F row[kRows];
#pragma GCC unroll 4
        for (int i = 0; i < kRows; ++i) row[i] = V::load(q + i * w.ldq + unit);
#pragma GCC unroll 16
        for (int c = 0; c < kColumns; ++c) {
          const F units = load_row<kWhole>(rows[c], unit * C::kPair, t.head_dim);
#pragma GCC unroll 4
          for (int i = 0; i < kRows; ++i) acc[i * kColumns + c] = C::dot(acc[i * kColumns + c], row[i], units);
        }
      }
      alignas(64) float sums[V::kLanes];
      V::store(sums, V::sum_each(acc));
      for (int i = 0; i < kRows; ++i)
        __builtin_memcpy(w.scores + (r + i) * kKeys + j, sums + i * kColumns, kColumns * sizeof(float));
    }
  }

  /// out += probabilities · v for kRows rows and the block's depth units [first, last).
  template <int kRows, bool kWhole>
  static void add_values(const ForwardTile& t, const Scratch& w, int32_t r, int64_t key, int64_t first, int64_t last,
                         int64_t end, Fetcher& fetcher, int64_t share) {
    constexpr int64_t kWidth = kChunk * V::kLanes;
    const In* v = static_cast<const In*>(t.v) + key * t.v_stride;
    const float* p = w.probabilities + r * (kKeys / C::kPair);
    const int64_t ahead = (share * C::kPair * kWidth + t.head_dim_v - 1) / t.head_dim_v;
    for (int64_t column = 0; column < t.head_dim_v; column += kWidth) {
      F acc[kRows][kChunk];
      float* out = w.out + r * w.ldo + column;
      const int64_t loads = kWhole ? kChunk / C::kPair : (t.head_dim_v - column + kElements - 1) / kElements;
#pragma GCC unroll 4
      for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 4
        for (int c = 0; c < kChunk; ++c)
          acc[i][c] = c / C::kPair < loads ? V::load(out + i * w.ldo + c * V::kLanes) : V::zero();
      for (int64_t unit = first; unit < last; ++unit) {
        const In* row = v + unit * C::kPair * t.v_stride;
        if (r == 0) fetcher.advance(ahead);
        F values[kChunk / C::kPair][C::kPair] = {};
#pragma GCC unroll 4
        for (int c = 0; c < kChunk / C::kPair; ++c) {
          const int64_t at = column + c * kElements, size = kWhole ? at + kElements : t.head_dim_v;
          if (c < loads) C::load_shuffled(values[c], row, t.v_stride, end - unit * C::kPair, at, size);
        }
#pragma GCC unroll 4
        for (int i = 0; i < kRows; ++i) {
          const F weight = V::set1(p[i * (kKeys / C::kPair) + unit]);
#pragma GCC unroll 4
          for (int c = 0; c < kChunk; ++c)
            if (c / C::kPair < loads) acc[i][c] = C::dot(acc[i][c], weight, values[c / C::kPair][c % C::kPair]);
        }
      }
#pragma GCC unroll 4
      for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 4
        for (int c = 0; c < kChunk; ++c)
          if (c / C::kPair < loads) V::store(out + i * w.ldo + c * V::kLanes, acc[i][c]);
    }
  }
};

}  // namespace tilewise::backends::cpu
