// Backward attention: a block of keys stays, blocks of queries pass. Scores are computed as in
// the forward pass (rows are queries), so that masks, bias and dropout are the same code; the
// gradients of k and v are accumulated transposed, which makes P and dS plain B operands.
#pragma once

#include <stdint.h>

#include "backends/cpu/isa/arena.h"
#include "backends/cpu/isa/decoded_scores.h"
#include "backends/cpu/isa/output.h"
#include "backends/cpu/isa/pack.h"
#include "backends/cpu/isa/score_gradients.h"

namespace tilewise::backends::cpu {

template <class C, class In>
class Backward {
  using V = typename C::V;
  using F = typename V::F;
  using Real = typename V::Real;
  static constexpr int64_t kKeys = C::kBackwardKeys;
  static constexpr int64_t kRows = C::kBackwardRows;
  static constexpr int64_t kGroup = C::kForwardRows;  // rows whose scores stay in the first-level cache
  static constexpr int64_t kElements = int64_t{V::kLanes} * C::kPair;
  static_assert(kKeys % kPanel<V> == 0 && kRows % kGroup == 0 && kRows % C::kPair == 0);

 public:
  static constexpr int32_t kBlockKeys = kKeys, kBlockRows = kRows;

  static size_t scratch_bytes(int32_t head_dim, int32_t head_dim_v) {
    return Scratch(nullptr, head_dim, head_dim_v).bytes;
  }

  static void begin_keys(const KeyBlock& b, void* scratch) {
    const Scratch w(scratch, b.head_dim, b.head_dim_v);
    RowFunctions<V>::start(b.score.functions);
    const In* k = static_cast<const In*>(b.k);
    pack_transposed<C>(k, b.k_stride, b.num_keys, b.head_dim, w.k_columns);
    pack_transposed<C>(static_cast<const In*>(b.v), b.v_stride, b.num_keys, b.head_dim_v, w.v_columns);
    pack_paired<C>(k, b.k_stride, b.num_keys, b.head_dim, w.k_rows);
    if (b.wants_dk) __builtin_memset(w.dk, 0, static_cast<size_t>(w.dim * kKeys) * sizeof(Real));
    if (b.wants_dv) __builtin_memset(w.dv, 0, static_cast<size_t>(w.dim_v * kKeys) * sizeof(Real));
  }

  static void add_queries(const KeyBlock& b, const QueryBlock& t, void* scratch) {
    [[maybe_unused]] const typename C::Session session;
    const Scratch w(scratch, b.head_dim, b.head_dim_v);
    int64_t begin = b.num_keys, end = 0;  // what these rows see of the block, widened to whole panels and vectors
    for (int32_t r = 0; r < t.num_rows; ++r) {
      const int64_t from = t.rows[r].key_begin - b.first_key, to = t.rows[r].key_end - b.first_key;
      if (to <= 0 || from >= b.num_keys || from >= to) continue;
      begin = from < begin ? from : begin;
      end = to > end ? to : end;
    }
    begin = begin < 0 ? 0 : begin / kSpanKeys<V> * kSpanKeys<V>;
    end = round_up(end < b.num_keys ? end : b.num_keys, 2 * V::kLanes);
    if (begin >= end) return;
    pack_queries(b, t, w);
    for (int32_t first = 0; first < t.num_rows; first += kGroup) score_group(b, t, w, first, begin, end);
    multiply_gradients(b, t, w, begin, end);
  }

  static void end_keys(const KeyBlock& b, void* dk, int64_t dk_stride, void* dv, int64_t dv_stride, void* scratch) {
    const Scratch w(scratch, b.head_dim, b.head_dim_v);
    if (dk)
      store_transposed(w.dk, b.num_keys, b.head_dim, static_cast<Real>(b.score.softmax_scale), static_cast<In*>(dk),
                       dk_stride, w);
    const auto scale = static_cast<Real>(b.score.dropout_threshold ? b.score.dropout_scale : 1.0);
    if (dv) store_transposed(w.dv, b.num_keys, b.head_dim_v, scale, static_cast<In*>(dv), dv_stride, w);
  }

 private:
  struct Scratch {
    int64_t ldq, ldo, ldt, dim, dim_v;
    Real *k_columns, *v_columns, *k_rows;       // B operands: k and v transposed, k as it is
    Real *q, *dout, *q_flipped, *dout_flipped;  // A operands
    Real *scores, *dp;                          // one group, Reals
    Real *capped, *slopes;                      // one row
    Real *p_columns, *ds_columns, *ds_rows;     // B, B and A operands of one query block
    Real *dk, *dv;                              // transposed accumulators
    Real* gradient_rows;                        // kLanes finished rows on their way out
    uint16_t* draws;
    size_t bytes;

    Scratch(void* base, int64_t head_dim, int64_t head_dim_v) {
      Arena<V> arena(base);
      ldq = round_up(depth_units<C>(head_dim), V::kLanes);
      ldo = round_up(depth_units<C>(head_dim_v), V::kLanes);
      ldt = round_up(depth_units<C>(kRows), V::kLanes);
      dim = round_up(head_dim, kElements);
      dim_v = round_up(head_dim_v, kElements);
      k_columns = arena.reals(kKeys * depth_units<C>(head_dim));
      v_columns = arena.reals(kKeys * depth_units<C>(head_dim_v));
      k_rows = arena.reals(round_up(head_dim, kPanel<V>) * depth_units<C>(kKeys));
      q = arena.reals((kRows + C::kRowPadding) * ldq);
      dout = arena.reals((kRows + C::kRowPadding) * ldo);
      q_flipped = arena.reals((dim + C::kRowPadding) * ldt);
      dout_flipped = arena.reals((dim_v + C::kRowPadding) * ldt);
      scores = arena.reals((kGroup + C::kRowPadding) * kKeys);
      dp = arena.reals((kGroup + C::kRowPadding) * kKeys);
      capped = arena.reals(kKeys);
      slopes = arena.reals(kKeys);
      p_columns = arena.reals(kKeys * depth_units<C>(kRows));
      ds_columns = arena.reals(kKeys * depth_units<C>(kRows));
      ds_rows = arena.reals((kRows + C::kRowPadding) * kKeys / C::kPair);
      dk = arena.reals((dim + C::kRowPadding) * kKeys);
      dv = arena.reals((dim_v + C::kRowPadding) * kKeys);
      gradient_rows = arena.reals(V::kLanes * (dim > dim_v ? dim : dim_v));
      draws = reinterpret_cast<uint16_t*>(arena.reals(round_up(kKeys, Dropout<V>::kKeys) / 2));
      bytes = arena.used();
    }
  };

  static void pack_queries(const KeyBlock& b, const QueryBlock& t, const Scratch& w) {
    const In *q = static_cast<const In*>(t.q), *dout = static_cast<const In*>(t.dout);
    for (int32_t r = 0; r < t.num_rows; ++r) {
      pack_row<C>(q + r * t.q_stride, b.head_dim, w.q + r * w.ldq);
      pack_row<C>(dout + r * t.dout_stride, b.head_dim_v, w.dout + r * w.ldo);
    }
    if (b.wants_dk) pack_flipped<C>(q, t.q_stride, t.num_rows, b.head_dim, w.q_flipped, w.ldt);
    if (b.wants_dv) pack_flipped<C>(dout, t.dout_stride, t.num_rows, b.head_dim_v, w.dout_flipped, w.ldt);
  }

  /// P and dS of rows [first, first + kGroup), as Reals and then as operands.
  static void score_group(const KeyBlock& b, const QueryBlock& t, const Scratch& w, int32_t first, int64_t begin,
                          int64_t end) {
    const int64_t rows = t.num_rows - first < kGroup ? t.num_rows - first : kGroup, columns = end - begin;
    const int64_t depth_k = depth_units<C>(b.head_dim), depth_v = depth_units<C>(b.head_dim_v);
    if (b.score.decoded)
      decoded_scores<C>(rows, columns, b.num_keys - begin, w.q + first * w.ldq, w.ldq,
                        static_cast<const In*>(b.k) + begin * b.k_stride, b.k_stride, b.head_dim, w.scores, kKeys);
    else
      C::multiply(rows, columns, depth_k, w.q + first * w.ldq, w.ldq, w.k_columns + begin * depth_k,
                  kPanel<V> * depth_k, w.scores, kKeys, false);
    C::multiply(rows, columns, depth_v, w.dout + first * w.ldo, w.ldo, w.v_columns + begin * depth_v,
                kPanel<V> * depth_v, w.dp, kKeys, false);
    const KeySpan span{b.first_key + begin, columns, b.num_keys - begin, t.all_visible};
    for (int64_t r = 0; r < rows; ++r) {
      const RowInfo& row = t.rows[first + r];
      Real *p = w.scores + r * kKeys, *ds = w.dp + r * kKeys;
      ScoreGradients<C, C::template precision<In>()>::row(row, b.score, span, p, ds, w.capped, w.slopes, w.draws, begin,
                                                          t.dbias_key_stride);
    }
    // The depth of the products over rows is padded with zeros after the last group.
    const bool last = first + rows == t.num_rows;
    pack_columns(w, first, rows, last ? depth_units<C>(t.num_rows) * C::kPair - first : rows, begin, columns);
    if (t.dq) pack_rows(w, first, rows, begin, columns);
  }

  /// P and dS of one group as B operands [panel][depth][kPanel]; rows up to `padded` are zero.
  static void pack_columns(const Scratch& w, int64_t first, int64_t rows, int64_t padded, int64_t begin,
                           int64_t columns) {
    const int64_t depth = depth_units<C>(kRows);
    for (int64_t r = 0; r < padded; r += C::kPair) {
      for (int64_t j = 0; j < columns; j += kElements) {
        const int64_t column = begin + j, unit = (first + r) / C::kPair;
        const int64_t to = (column / kPanel<V> * depth + unit) * kPanel<V> + column % kPanel<V>;
        store_pair(w.scores + j, r, rows, w.p_columns + to);
        store_pair(w.dp + j, r, rows, w.ds_columns + to);
      }
    }
  }

  TILEWISE_INLINE static void store_pair(const Real* from, int64_t r, int64_t rows, Real* to) {
    F pair[C::kPair];
    C::pair_columns(pair, r < rows ? from + r * kKeys : nullptr, r + 1 < rows ? from + (r + 1) * kKeys : nullptr);
#pragma GCC unroll 2
    for (int i = 0; i < C::kPair; ++i) V::store(to + i * V::kLanes, pair[i]);
  }

  /// dS of one group as an A operand.
  static void pack_rows(const Scratch& w, int64_t first, int64_t rows, int64_t begin, int64_t columns) {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t j = 0; j < columns; j += 2 * V::kLanes) {
        const Real* ds = w.dp + r * kKeys + j;
        C::store_row(w.ds_rows + (first + r) * (kKeys / C::kPair), begin + j, V::load(ds), V::load(ds + V::kLanes));
      }
    }
  }

  static void multiply_gradients(const KeyBlock& b, const QueryBlock& t, const Scratch& w, int64_t begin, int64_t end) {
    const int64_t columns = end - begin, stride = kPanel<V> * depth_units<C>(kRows);
    const int64_t rows = depth_units<C>(t.num_rows), panel = begin / kPanel<V> * stride;
    if (b.wants_dv)
      C::multiply(b.head_dim_v, columns, rows, w.dout_flipped, w.ldt, w.p_columns + panel, stride, w.dv + begin, kKeys,
                  true);
    if (b.wants_dk)
      C::multiply(b.head_dim, columns, rows, w.q_flipped, w.ldt, w.ds_columns + panel, stride, w.dk + begin, kKeys,
                  true);
    if (!t.dq) return;
    const int64_t depth = depth_units<C>(b.num_keys), from = begin / C::kPair;
    const int64_t to = end / C::kPair < depth ? end / C::kPair : depth;
    C::multiply(t.num_rows, b.head_dim, to - from, w.ds_rows + from, kKeys / C::kPair, w.k_rows + from * kPanel<V>,
                kPanel<V> * depth, static_cast<Real*>(t.dq), t.dq_stride, true);
  }

  /// Rows of a transposed accumulator [size][kKeys] to rows of the caller's gradient.
  static void store_transposed(const Real* from, int64_t count, int64_t size, Real factor, In* to, int64_t stride,
                               const Scratch& w) {
    Real* rows = w.gradient_rows;
    const int64_t ld = round_up(size, V::kLanes);
    for (int64_t key = 0; key < count; key += V::kLanes) {
      for (int64_t d = 0; d < size; d += V::kLanes) {
        F block[V::kLanes];
#pragma GCC unroll 16
        for (int i = 0; i < V::kLanes; ++i) block[i] = V::load(from + (d + i) * kKeys + key);
        V::transpose(block);
#pragma GCC unroll 16
        for (int i = 0; i < V::kLanes; ++i) V::store(rows + i * ld + d, block[i]);
      }
      for (int64_t i = 0; i < V::kLanes && key + i < count; ++i)
        store_scaled<V>(rows + i * ld, size, factor, to + (key + i) * stride);
    }
  }
};

}  // namespace tilewise::backends::cpu
