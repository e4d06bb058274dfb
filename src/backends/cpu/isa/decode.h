// Attention of a few rows (decode): keys and values are read once, straight from the caller's
// rows, since packing them would cost more than the products. The aim is memory bandwidth.
#pragma once

#include <stdint.h>

#include "backends/cpu/isa/arena.h"
#include "backends/cpu/isa/output.h"
#include "backends/cpu/isa/pack.h"
#include "backends/cpu/isa/weigh.h"

namespace tilewise::backends::cpu {

template <class C, class In>
class Decode {
  using V = typename C::V;
  using F = typename V::F;
  static constexpr int64_t kKeys = 128;  // keys between the two products
  static constexpr int64_t kAhead = 16;  // keys fetched before they are needed
  static constexpr int64_t kChunk = 4;   // output vectors held in registers: times 4 rows, 16 accumulators
  static constexpr int64_t kLineBytes = 64;

 public:
  static constexpr int32_t kMaxRows = 16;

  static size_t scratch_bytes(int32_t head_dim, int32_t head_dim_v) {
    return Scratch(nullptr, head_dim, head_dim_v).bytes;
  }

  static void run(const ForwardTile& t, void* scratch) {
    const Scratch w(scratch, t.head_dim, t.head_dim_v);
    for (int32_t r = 0; r < t.num_rows; ++r) {
      pack_row<C>(static_cast<const In*>(t.rows[r].q), t.head_dim, w.q + r * w.ldq);
      V::store(w.states[r].sum, V::zero());
      w.states[r].reference = kNegativeInfinity;
    }
    __builtin_memset(w.out, 0, static_cast<size_t>(t.num_rows * w.ldo) * sizeof(float));
    for (int64_t key = t.key_begin / kKeys * kKeys; key < t.key_end; key += kKeys) visit_block(t, w, key);
    write_output<V, In>(t, w.out, w.ldo, w.states);
  }

 private:
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

  static void visit_block(const ForwardTile& t, const Scratch& w, int64_t key) {
    const int64_t begin = t.key_begin > key ? t.key_begin - key : 0;
    const int64_t end = t.key_end - key < kKeys ? t.key_end - key : kKeys;
    const int64_t columns = round_up(end, 2 * V::kLanes);
    for (int32_t r = 0; r < t.num_rows;) {
      const int32_t left = t.num_rows - r;
      if (left >= 4) {
        score_rows<4>(t, w, r, key, begin, end);
        r += 4;
      } else if (left >= 2) {
        score_rows<2>(t, w, r, key, begin, end);
        r += 2;
      } else {
        score_rows<1>(t, w, r, key, begin, end);
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
          add_values<1>(t, w, r, key, first, last, end);
          break;
        case 2:
          add_values<2>(t, w, r, key, first, last, end);
          break;
        case 3:
          add_values<3>(t, w, r, key, first, last, end);
          break;
        default:
          add_values<4>(t, w, r, key, first, last, end);
          break;
      }
    }
  }

  TILEWISE_INLINE static void fetch(const In* row, int64_t size) {
    const char* line = reinterpret_cast<const char*>(row);
    for (int64_t b = 0; b < size * static_cast<int64_t>(sizeof(In)); b += kLineBytes) __builtin_prefetch(line + b);
  }

  /// Scores of kRows rows against keys [begin, end) of the block; a vector of results at a time.
  template <int kRows>
  static void score_rows(const ForwardTile& t, const Scratch& w, int32_t r, int64_t key, int64_t begin, int64_t end) {
    constexpr int kColumns = V::kLanes / kRows;
    const In* k = static_cast<const In*>(t.k);
    const float* q = w.q + r * w.ldq;
    for (int64_t j = begin / kColumns * kColumns; j < end; j += kColumns) {
      const In* rows[kColumns];
      for (int c = 0; c < kColumns; ++c) {
        const int64_t wanted = key + j + c, ahead = wanted + kAhead;
        rows[c] = k + (wanted < t.seqlen_k ? wanted : t.seqlen_k - 1) * t.k_stride;
        if (ahead < t.key_end) fetch(k + ahead * t.k_stride, t.head_dim);
      }
      F acc[V::kLanes];
#pragma GCC unroll 16
      for (int i = 0; i < V::kLanes; ++i) acc[i] = V::zero();
      for (int64_t unit = 0; unit < w.ldq; unit += V::kLanes) {
        F row[kRows];
#pragma GCC unroll 4
        for (int i = 0; i < kRows; ++i) row[i] = V::load(q + i * w.ldq + unit);
#pragma GCC unroll 16
        for (int c = 0; c < kColumns; ++c) {
          const F units = load_units<C>(rows[c], unit * C::kPair, t.head_dim);
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
  template <int kRows>
  static void add_values(const ForwardTile& t, const Scratch& w, int32_t r, int64_t key, int64_t first, int64_t last,
                         int64_t end) {
    constexpr int64_t kWidth = kChunk * V::kLanes;
    const In* v = static_cast<const In*>(t.v) + key * t.v_stride;
    const float* p = w.probabilities + r * (kKeys / C::kPair);
    for (int64_t column = 0; column < t.head_dim_v; column += kWidth) {
      F acc[kRows][kChunk];
      float* out = w.out + r * w.ldo + column;
      const int64_t loads = (t.head_dim_v - column + V::kLanes * C::kPair - 1) / (V::kLanes * C::kPair);
#pragma GCC unroll 4
      for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 4
        for (int c = 0; c < kChunk; ++c)
          acc[i][c] = c / C::kPair < loads ? V::load(out + i * w.ldo + c * V::kLanes) : V::zero();
      for (int64_t unit = first; unit < last; ++unit) {
        const In* row = v + unit * C::kPair * t.v_stride;
        if (column == 0)
          for (int i = 0; i < C::kPair; ++i)
            if (key + unit * C::kPair + i + kAhead < t.key_end) fetch(row + (kAhead + i) * t.v_stride, t.head_dim_v);
        F values[kChunk / C::kPair][C::kPair] = {};
#pragma GCC unroll 4
        for (int c = 0; c < kChunk / C::kPair; ++c) {
          if (c < loads)
            C::load_paired(values[c], row, t.v_stride, end - unit * C::kPair, column + c * C::kPair * V::kLanes,
                           t.head_dim_v);
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
