// Products of a few rows with a block of keys, and with their values, read where they lie.
#pragma once

#include <stdint.h>

#include "backends/cpu/isa/decode_rows.h"
#include "backends/cpu/isa/pack.h"

namespace tilewise::backends::cpu {

/// Queries in In; keys and values in Stored, as Rows of decode_rows.h.
template <class C, class In, class Stored>
struct DecodeProducts {
  using V = typename C::V;
  using F = typename V::F;
  using Real = typename V::Real;
  static constexpr int64_t kKeys = 64;                                         // of a block, at most
  static constexpr int64_t kDepth = int64_t{V::kLanes} * C::kKeyVectors;       // units of a key loaded at once
  static constexpr int64_t kElements = int64_t{V::kLanes} * C::kValueVectors;  // columns of values
  static constexpr int64_t kQuad = 4;                                          // rows computed together
  static constexpr int64_t kColumns = V::kLanes / kQuad;                       // and keys: a vector of scores
  // Output vectors held in registers: times 4 rows half of all. 16 of 16 go through memory: 9% more time.
  static constexpr int64_t kChunk = V::kPanelVectors;
  static constexpr int64_t kWidth = kChunk * V::kLanes;
  // Vectors between two steps of the fetchers, and between two requests.
  static constexpr int64_t kPace = 16 / V::kLanes * int64_t{sizeof(In) / sizeof(Stored)};
  static constexpr int64_t kTogether = sizeof(Stored) == 1 ? 4 : 2;  // of heads of 128 dims 512 bytes of a page
  using Order = VisitOrder<kKeys, kTogether>;

  /// scores[r][key] of `rows` rows, kKeys apart.
  template <bool kWhole, class Rows>
  TILEWISE_INLINE static void score(int64_t rows, Rows k, const Real* q, int64_t ldq, Real* scores) {
    for (; rows > 0; rows -= kQuad, q += kQuad * ldq, scores += kQuad * kKeys, k.again()) {
      switch (rows) {
        case 1:
          score_rows<1, kWhole>(k, q, ldq, scores);
          break;
        case 2:
          score_rows<2, kWhole>(k, q, ldq, scores);
          break;
        case 3:
          score_rows<3, kWhole>(k, q, ldq, scores);
          break;
        default:
          score_rows<4, kWhole>(k, q, ldq, scores);
          break;
      }
    }
  }

  /// out[r] += weights[r] · v of `rows` rows, weights kKeys apart, in pairs where keys are.
  template <bool kWhole, class Rows>
  TILEWISE_INLINE static void add(int64_t rows, Rows v, const Real* weights, Real* out, int64_t ldo) {
    for (; rows > 0; rows -= kQuad, weights += kQuad * kWeights, out += kQuad * ldo, v.again()) {
      switch (rows) {
        case 1:
          add_values<1, kWhole>(v, weights, out, ldo);
          break;
        case 2:
          add_values<2, kWhole>(v, weights, out, ldo);
          break;
        case 3:
          add_values<3, kWhole>(v, weights, out, ldo);
          break;
        default:
          add_values<4, kWhole>(v, weights, out, ldo);
          break;
      }
    }
  }

 private:
  static constexpr int64_t kWeights = kKeys / C::kPair;

  /// A vector of results at a time. Not inlined: its accumulators need all registers.
  template <int kRows, bool kWhole, class Rows>
  [[gnu::noinline]] static void score_rows(const Rows& k, const Real* q, int64_t ldq, Real* scores) {
    for (int64_t j = 0; j < k.count; j += kColumns) {
      const Stored* rows[kColumns];
#pragma GCC unroll 4
      for (int c = 0; c < kColumns; ++c) rows[c] = k.row_there(j + c);
      const typename Rows::template Requests<kColumns> requests(k, j);
      F acc[V::kLanes];
#pragma GCC unroll 16
      for (int i = 0; i < V::kLanes; ++i) acc[i] = V::zero();
      for (int64_t unit = 0; unit < ldq; unit += kDepth) {
        if (unit / V::kLanes % kPace == 0) k.step();
        F row[kRows][C::kKeyVectors];
#pragma GCC unroll 4
        for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 2
          for (int d = 0; d < C::kKeyVectors; ++d) row[i][d] = V::load(q + i * ldq + unit + d * V::kLanes);
#pragma GCC unroll 4
        for (int c = 0; c < kColumns; ++c) {
          F units[C::kKeyVectors];
          C::template load_key<kWhole>(units, rows[c], unit * C::kPair, k.size);
          if (unit / V::kLanes % kPace == 0) requests.request(k, rows[c], c, unit * C::kPair);
#pragma GCC unroll 2
          for (int d = 0; d < C::kKeyVectors; ++d)
#pragma GCC unroll 4
            for (int i = 0; i < kRows; ++i) acc[i * kColumns + c] = C::dot(acc[i * kColumns + c], row[i][d], units[d]);
        }
      }
      alignas(64) Real sums[V::kLanes];
      V::store(sums, V::sum_each(acc));
      constexpr int64_t kAdjacent = Rows::adjacent(kColumns);
#pragma GCC unroll 4
      for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 2
        for (int64_t c = 0; c < kColumns; c += kAdjacent)
          __builtin_memcpy(scores + i * kKeys + k.key(j + c), sums + i * kColumns + c, kAdjacent * sizeof(Real));
    }
  }

  template <int kRows, bool kWhole, class Rows>
  [[gnu::noinline]] static void add_values(const Rows& v, const Real* weights, Real* out, int64_t ldo) {
    for (int64_t column = 0; column < v.size; column += kWidth, out += kWidth) {
      F acc[kRows][kChunk];
      const int64_t loads = kWhole ? kChunk / C::kValueVectors : (v.size - column + kElements - 1) / kElements;
#pragma GCC unroll 4
      for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 4
        for (int c = 0; c < kChunk; ++c)
          acc[i][c] = c / C::kValueVectors < loads ? V::load(out + i * ldo + c * V::kLanes) : V::zero();
      int64_t j = 0;
      for (; j + C::kPair <= v.count; j += C::kPair) add_pair<kRows, kWhole, true>(v, j, column, loads, weights, acc);
      if (j < v.count) add_pair<kRows, kWhole, false>(v, j, column, loads, weights, acc);
#pragma GCC unroll 4
      for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 4
        for (int c = 0; c < kChunk; ++c)
          if (c / C::kValueVectors < loads) V::store(out + i * ldo + c * V::kLanes, acc[i][c]);
    }
  }

  /// acc += weights · values of the row visited at j and, unless it is the last one, the next.
  template <int kRows, bool kWhole, bool kBoth, class Rows>
  TILEWISE_INLINE static void add_pair(const Rows& v, int64_t j, int64_t column, int64_t loads, const Real* weights,
                                       F (&acc)[kRows][kChunk]) {
    const Stored* row[C::kPair];
#pragma GCC unroll 2
    for (int i = 0; i < C::kPair; ++i) row[i] = v.row(j + i);
    const typename Rows::template Requests<C::kPair> requests(v, j);
    if (j / C::kPair % kPace == 0) v.step();
    F values[kChunk / C::kValueVectors][C::kValueVectors] = {};
#pragma GCC unroll 4
    for (int c = 0; c < kChunk / C::kValueVectors; ++c) {
      const int64_t at = column + c * kElements, size = kWhole ? at + kElements : v.size;
      if (c < loads) C::load_shuffled(values[c], row[0], kBoth ? row[C::kPair - 1] : nullptr, at, size);
      if (c % kPace == 0)
#pragma GCC unroll 2
        for (int i = 0; i < C::kPair; ++i) requests.request(v, row[i], i, at);
    }
    const Real* pair = weights + v.key(j) / C::kPair;
#pragma GCC unroll 4
    for (int i = 0; i < kRows; ++i) {
      const F weight = V::set1(pair[i * kWeights]);
#pragma GCC unroll 4
      for (int c = 0; c < kChunk; ++c)
        if (c / C::kValueVectors < loads)
          acc[i][c] = C::dot(acc[i][c], weight, values[c / C::kValueVectors][c % C::kValueVectors]);
    }
  }
};

}  // namespace tilewise::backends::cpu
