// Forward attention of one tile: key blocks outside, groups of rows inside. Each block of keys
// and values is packed once for all rows of the tile; a group's scores and probabilities stay
// in the first-level cache between the two products.
#pragma once

#include <stdint.h>

#include "backends/cpu/isa/arena.h"
#include "backends/cpu/isa/output.h"
#include "backends/cpu/isa/pack.h"
#include "backends/cpu/isa/weigh.h"

namespace tilewise::backends::cpu {

template <class C, class In>
class Forward {
  using V = typename C::V;
  using Real = typename V::Real;
  using Weigher = Weigh<C, C::template precision<In>()>;
  static constexpr int64_t kKeys = C::kForwardKeys;   // keys of a block: whole panels
  static constexpr int64_t kGroup = C::kForwardRows;  // rows between the two products
  static_assert(kKeys % kPanel<V> == 0 && kKeys % 32 == 0);

 public:
  static constexpr int32_t kMaxRows = C::kMaxRows, kBlockKeys = kKeys;

  static size_t scratch_bytes(int32_t head_dim, int32_t head_dim_v) {
    return Scratch(nullptr, head_dim, head_dim_v).bytes;
  }

  static void run(const ForwardTile& t, void* scratch) {
    [[maybe_unused]] const typename C::Session session;
    const Scratch w(scratch, t.head_dim, t.head_dim_v);
    RowFunctions<V>::start(t.score.functions);
    for (int32_t r = 0; r < t.num_rows; ++r) {
      pack_row<C>(static_cast<const In*>(t.rows[r].q), t.head_dim, w.q + r * w.ldq);
      Weigher::RowSoftmax::start(w.states[r]);
    }
    __builtin_memset(w.out, 0, static_cast<size_t>(t.num_rows * w.ldo) * sizeof(Real));
    const device::Visibility* next = t.blocks;
    for (int64_t key = t.key_begin / kKeys * kKeys; key < t.key_end; key += kKeys) {
      if (t.abandoned()) return;
      const device::Visibility visible = next ? *next++ : device::Visibility::some;
      if (visible != device::Visibility::none) visit_block(t, w, key, visible == device::Visibility::all);
    }
    write_output<V, In>(t, w.out, w.ldo, w.states);
  }

 private:
  struct Scratch {
    int64_t ldq, ldo;
    Real *q, *k, *v, *scores, *probabilities, *out;
    RowState<V>* states;
    uint16_t* draws;
    size_t bytes;

    Scratch(void* base, int64_t head_dim, int64_t head_dim_v) {
      Arena<V> arena(base);
      ldq = round_up(depth_units<C>(head_dim), V::kLanes);
      ldo = round_up(head_dim_v, 2 * V::kLanes);
      q = arena.reals((kMaxRows + C::kRowPadding) * ldq);
      k = arena.reals(kKeys * depth_units<C>(head_dim));
      v = arena.reals(round_up(head_dim_v, kPanel<V>) * kKeys / C::kPair);
      scores = arena.reals((kGroup + C::kRowPadding) * kKeys);
      probabilities = arena.reals((kGroup + C::kRowPadding) * kKeys / C::kPair);
      out = arena.reals((kMaxRows + C::kRowPadding) * ldo);
      states = reinterpret_cast<RowState<V>*>(
          arena.reals(kMaxRows * static_cast<int64_t>(sizeof(RowState<V>) / sizeof(Real))));
      draws = reinterpret_cast<uint16_t*>(arena.reals(round_up(kKeys, Dropout<V>::kKeys) / 2));
      bytes = arena.used();
    }
  };

  static void visit_block(const ForwardTile& t, const Scratch& w, int64_t key, bool all_visible) {
    const int64_t keys = t.seqlen_k - key < kKeys ? t.seqlen_k - key : kKeys;
    const int64_t depth_k = depth_units<C>(t.head_dim), depth_v = depth_units<C>(keys);
    if (t.gatherer) t.gatherer->fill(*t.gatherer, key, keys);
    const int64_t held = t.gatherer ? 0 : key;  // where the block's first key is
    pack_transposed<C>(static_cast<const In*>(t.k) + held * t.k_stride, t.k_stride, keys, t.head_dim, w.k);
    pack_paired<C>(static_cast<const In*>(t.v) + held * t.v_stride, t.v_stride, keys, t.head_dim_v, w.v);
    for (int32_t first = 0; first < t.num_rows; first += kGroup) {
      const int32_t rows = t.num_rows - first < kGroup ? t.num_rows - first : static_cast<int32_t>(kGroup);
      int64_t begin = keys, end = 0;  // what the group sees of this block, widened to panels
      for (int32_t r = first; r < first + rows; ++r) {
        const int64_t b = t.rows[r].key_begin - key, e = t.rows[r].key_end - key;
        if (e <= 0 || b >= keys || b >= e) continue;
        begin = b < begin ? b : begin;
        end = e > end ? e : end;
      }
      begin = begin < 0 ? 0 : begin / kSpanKeys<V> * kSpanKeys<V>;
      end = round_up(end < keys ? end : keys, 2 * V::kLanes);
      if (begin >= end) continue;
      const int64_t columns = end - begin;
      C::multiply(rows, columns, depth_k, w.q + first * w.ldq, w.ldq, w.k + begin * depth_k, kPanel<V> * depth_k,
                  w.scores, kKeys, false);
      for (int32_t r = 0; r < rows; ++r) {
        const KeySpan span{key + begin, columns, keys - begin, all_visible};
        const Real rescale = Weigher::row(t.rows[first + r], t.score, span, w.scores + r * kKeys, w.states[first + r],
                                          w.probabilities + r * (kKeys / C::kPair), w.draws);
        if (rescale != 1.0f) Scores<V>::multiply(w.out + (first + r) * w.ldo, w.ldo, rescale);
      }
      const int64_t last = begin / C::kPair + columns / C::kPair;
      C::multiply(rows, t.head_dim_v, (last < depth_v ? last : depth_v) - begin / C::kPair, w.probabilities,
                  kKeys / C::kPair, w.v + begin / C::kPair * kPanel<V>, kPanel<V> * depth_v, w.out + first * w.ldo,
                  w.ldo, true);
    }
  }
};

}  // namespace tilewise::backends::cpu
