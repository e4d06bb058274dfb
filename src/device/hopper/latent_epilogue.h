// From accumulators of MLA's decoding to out and softmax_lse, or to the sums of one part of the keys.
#pragma once

#include "device/attention/tensor_rows.h"
#include "device/hopper/latent_shared.h"
#include "device/tile/row_reference.h"

namespace tilewise::device {

/// Rows of a block as (query, head) pairs.
template <class Machine>
struct LatentRows {
  const LatentOrder& order;
  int32_t first_query, first_head, num_heads;

  TILEWISE_INLINE LatentRows(const HopperLatentParams& p, const LatentWork& work)
      : order(p.order),
        first_query(work.first_query),
        first_head(work.first_head),
        num_heads(static_cast<int32_t>(p.shape.num_heads_q)) {}
  TILEWISE_INLINE int32_t query(int32_t row) const { return first_query + row / order.heads_of_tile; }
  TILEWISE_INLINE int32_t head(int32_t row) const { return first_head + row % order.heads_of_tile; }
  /// Whether the row is a head's, of one of the first `count` queries.
  TILEWISE_INLINE bool is_among(int32_t row, int64_t count) const {
    return row < order.queries_of_tile * order.heads_of_tile && query(row) < count && head(row) < num_heads;
  }
  /// Row of the block behind a slot of this lane.
  TILEWISE_INLINE static int32_t row_of_slot(int slot) { return warp_row<Machine>() + Machine::lane() / 4 + 8 * slot; }
};

/// Stores half of the columns: those of one warpgroup.
template <class Machine, HopperLatentConfig C>
class LatentEpilogue {
  static constexpr int kColumns = C.head_dim_v / C.kConsumers;

 public:
  TILEWISE_INLINE LatentEpilogue(const HopperLatentParams& params, const LatentWork& work, int32_t warpgroup)
      : p_(params), work_(work), rows_(params, work), warpgroup_(warpgroup) {}

  template <class Out>
  TILEWISE_INLINE void store(const Out& O) const {
    TILEWISE_UNROLL
    for (int slot = 0; slot < Out::kSlots; ++slot) {
      const int32_t row = rows_.row_of_slot(slot);
      const bool stored = rows_.is_among(row, work_.all_q);
      if (leaves_sums()) {
        if (stored) store_part(O, slot, p_.out_accum + part_row(row) * p_.shape.head_dim_v + warpgroup_ * kColumns);
      } else {
        store_row(O, slot, stored ? address_of(row) : nullptr);
      }
    }
  }

  TILEWISE_INLINE void store_lse(int32_t row, const RowLse& lse) const {
    if (!rows_.is_among(row, work_.all_q)) return;
    if (leaves_sums()) {
      lse.store<Machine>(p_.lse_accum, part_row(row));
      return;
    }
    const LseTensor& t = p_.softmax_lse;
    if (!t.data) return;
    const int64_t at = work_.batch * t.batch_stride + rows_.head(row) * t.head_stride + place_of(row) * t.seq_stride;
    Machine::store_global(t.data + at, lse.sum());
  }

 private:
  /// For combine, in the same way in all of a block.
  TILEWISE_INLINE bool leaves_sums() const { return C.split && !(schedules_keys<C>() && work_.is_whole()); }

  /// 8 bytes a lane, four lanes to 32 bytes of a row.
  template <class Out>
  TILEWISE_INLINE static void store_part(const Out& O, int slot, float* to) {
    TILEWISE_UNROLL
    for (int c = 0; c < Out::kColTiles; ++c) {
      const auto& x = O.tile[0][c];
      Machine::store_global(reinterpret_cast<FloatRun<2>*>(to + 8 * c + 2 * (Machine::lane() % 4)),
                            FloatRun<2>{{x[2 * slot], x[2 * slot + 1]}});
    }
  }

  /// 16 bytes a lane, four lanes to 64 bytes of a row. All lanes take part; `to` is null where the row is none.
  template <class Out>
  TILEWISE_INLINE static void store_row(const Out& O, int slot, uint16_t* to) {
    TILEWISE_UNROLL
    for (int c = 0; c < Out::kColTiles; c += 4) {
      uint32_t word[4];
      TILEWISE_UNROLL
      for (int i = 0; i < 4; ++i) {
        const auto& x = O.tile[0][c + i];
        word[i] = Machine::template pack<C.out_type>(x[2 * slot], x[2 * slot + 1]);
      }
      transpose_quad<Machine>(word);
      if (!to) continue;
      Machine::store_global(reinterpret_cast<Chunk*>(to + (c + Machine::lane() % 4) * 8),
                            Chunk{{word[0], word[1], word[2], word[3]}});
    }
  }

  /// Of a row's query in out and softmax_lse.
  TILEWISE_INLINE int64_t place_of(int32_t row) const { return work_.q_row + rows_.query(row); }
  TILEWISE_INLINE uint16_t* address_of(int32_t row) const {
    const Tensor4& t = p_.out;
    return static_cast<uint16_t*>(t.data) + work_.batch * t.batch_stride + place_of(row) * t.seq_stride +
           rows_.head(row) * t.head_stride + warpgroup_ * kColumns;
  }

  /// Of lse_accum and out_accum.
  TILEWISE_INLINE int64_t part_row(int32_t row) const {
    const AttentionShape& s = p_.shape;
    const int64_t query = rows_.query(row), head = rows_.head(row);
    if constexpr (schedules_keys<C>()) return dense_row(s, work_.part.place, query, head);
    return work_.part.number * (s.batch_size * s.num_heads_q * s.seqlen_q) + dense_row(s, work_.batch, query, head);
  }

  const HopperLatentParams& p_;
  const LatentWork& work_;
  LatentRows<Machine> rows_;
  int32_t warpgroup_;
};

}  // namespace tilewise::device
