// From accumulators to out and softmax_lse: by TMA through the place of the rows' Q, or from registers.
#pragma once

#include "device/attention/sink.h"
#include "device/attention/tensor_rows.h"
#include "device/hopper/column_maps.h"
#include "device/hopper/forward_rows.h"
#include "device/hopper/softmax.h"
#include "device/sm90/tensor_map.h"

namespace tilewise::device {

/// Of a lane's two rows.
struct LseOfRows {
  RowLse of[2];
};

template <class Machine, auto C>
class ForwardEpilogue {
  using Tile = typename HopperForwardShared<Machine, C>::RowTile;

 public:
  TILEWISE_INLINE ForwardEpilogue(const HopperForwardParams& params, const SharedWork<Machine>& work, int32_t warpgroup)
      : p_(params), work_(work), rows_(params, work, warpgroup) {}

  /// Divides O by the rows' sums, and returns their lse. As a rule both rows of all lanes are used and need no care:
  /// the care that others take costs short sequences 3%.
  template <class Softmax, class Out>
  TILEWISE_INLINE LseOfRows normalize(Softmax& softmax, Out& O) const {
    softmax.reduce_sum();
    const float value_scale = this->value_scale();
    bool usual = true;
    TILEWISE_UNROLL
    for (int slot = 0; slot < Out::kSlots; ++slot) {
      usual &= is_used(slot);
      usual &= softmax.has_small_lse(slot);
    }
    if (Machine::any(!usual)) return normalize_with_care(softmax, value_scale, O);
    typename Out::PerRow factor;
    LseOfRows lse;
    TILEWISE_UNROLL
    for (int slot = 0; slot < Out::kSlots; ++slot) {
      lse.of[slot] = softmax.small_lse(slot);
      factor[slot] = Machine::reciprocal(softmax.row_sum[slot]);
      complete(slot, true, value_scale, lse.of[slot], factor[slot]);
    }
    O.scale_rows(factor);
    return lse;
  }

  /// Behind stage(), whose fence would wait for these stores: 2% of a call at 512.
  TILEWISE_INLINE void store_lse(const LseOfRows& lse) const {
    if (Machine::lane() % 4 != 0) return;
    TILEWISE_UNROLL
    for (int slot = 0; slot < 2; ++slot) store_lse_of(rows_.row_of_slot(slot), lse.of[slot]);
  }

  /// Rounds O into a tile of shared memory.
  template <class Out>
  TILEWISE_INLINE void stage(const Out& O, Tile& tile) const {
    auto thread = static_cast<uint32_t>(Machine::thread());
    Machine::pin(thread);  // else places that follow from it are kept across the steps, in up to eight registers
    const auto row = static_cast<int>(thread / 32 % 4 * 16 + thread % 16), half = static_cast<int>(thread / 16 % 2);
    const int place = Tile::place_of(row, half);
    store_pairs<Machine, Out::kColTiles>(tile, place, [&](int c, int slot) { return rounded_pair(O, c, slot); });
    Machine::fence_shared_writes();
  }

  /// Once all of the warpgroup have staged: begins the way of a tile to out.
  TILEWISE_INLINE void store_staged(Tile& tile) const {
    if (!C.lengths || rows_.first_query + rows_.queries <= work_.all_q) {
      if (leads_warpgroup<Machine>()) store_boxes(tile);
    } else {
      copy_rows(tile);  // the rows behind the last one are another sequence's
    }
  }

  /// From registers: 16 bytes a lane, four lanes to 64 bytes of a row.
  template <class Out>
  TILEWISE_INLINE void store_directly(const Out& O) const {
    const auto pieces = static_cast<int32_t>(p_.shape.head_dim_v / 8);
    const bool turned = columns().turned;
    TILEWISE_UNROLL
    for (int slot = 0; slot < Out::kSlots; ++slot) {
      const int32_t row = rows_.row_of_slot(slot);
      uint16_t* const to = rows_.is_among(row, work_.all_q) ? address_of(row) : nullptr;
      TILEWISE_UNROLL
      for (int c = 0; c < Out::kColTiles; c += 4) {
        uint32_t word[4] = {};
        TILEWISE_UNROLL
        for (int i = 0; i < 4; ++i) {
          if (c + i < Out::kColTiles) word[i] = rounded_pair(O, c + i, slot);
        }
        transpose_quad<Machine>(word);
        const int32_t place = c + Machine::lane() % 4, piece = piece_of_place(place, pieces, turned);
        if (to && place < pieces) {
          Machine::store_global(reinterpret_cast<Chunk*>(to + piece * 8), Chunk{{word[0], word[1], word[2], word[3]}});
        }
      }
    }
  }

  /// From registers to out_accum, which a part's rows fill whole: 8 bytes a lane, four lanes to 32 bytes of a row.
  template <class Out>
  TILEWISE_INLINE void store_part(const Out& O) const {
    TILEWISE_UNROLL
    for (int slot = 0; slot < Out::kSlots; ++slot) {
      const int32_t row = rows_.row_of_slot(slot);
      if (!rows_.is_among(row, work_.all_q)) continue;
      float* const to = p_.out_accum + part_row(row) * p_.shape.head_dim_v + 2 * (Machine::lane() % 4);
      TILEWISE_UNROLL
      for (int c = 0; c < Out::kColTiles; ++c) {
        const auto& x = O.tile[0][c];
        if (8 * c >= p_.shape.head_dim_v) continue;
        Machine::store_global(reinterpret_cast<FloatRun<2>*>(to + 8 * c), FloatRun<2>{{x[2 * slot], x[2 * slot + 1]}});
      }
    }
  }

 private:
  TILEWISE_INLINE ColumnBoxes<C.turned_columns> columns() const {
    return {p_.out_map, p_.out_first_map, p_.v_starts, key_head<C>(p_, work_)};
  }

  TILEWISE_INLINE float value_scale() const {
    if constexpr (!C.fp8()) return 1.0f;
    return load_scale<Machine>(p_.v_scale, work_.batch, key_head<C>(p_, work_));
  }
  TILEWISE_INLINE bool is_used(int slot) const { return rows_.is_among(rows_.row_of_slot(slot), work_.seqlen_q); }

  /// The greatest weight of a row that sees something is far from 0, and NaN among its scores makes the sum a NaN: a
  /// sum of 0 is that of a row that sees nothing.
  template <class Softmax, class Out>
  TILEWISE_INLINE LseOfRows normalize_with_care(const Softmax& softmax, float value_scale, Out& O) const {
    typename Out::PerRow factor;
    LseOfRows lse;
    const float natural = natural_scale();
    TILEWISE_UNROLL
    for (int slot = 0; slot < Out::kSlots; ++slot) {
      const float sum = softmax.row_sum[slot];
      const bool used = is_used(slot), seen = sum != 0.0f;
      lse.of[slot] = softmax.lse(slot, sum, natural);
      factor[slot] = used && seen ? 1.0f / sum : 0.0f;
      complete(slot, seen, value_scale, lse.of[slot], factor[slot]);
      if (!used) lse.of[slot] = {-kInfinity, 0.0f};
      if (!used || !seen) factor[slot] = 0.0f;
    }
    // Selecting costs as much as scaling, and rows that see nothing are few.
    if (Machine::any(factor[0] == 0.0f || factor[1] == 0.0f)) {
      O.scale_or_clear_rows(factor);
    } else {
      O.scale_rows(factor);
    }
    return lse;
  }

  /// The sink, and what else a row's weights are multiplied by. seen: whether the row has weights.
  TILEWISE_INLINE void complete(int slot, [[maybe_unused]] bool seen, float value_scale, RowLse& lse,
                                float& factor) const {
    if constexpr (C.sink) {
      const int64_t head = minimum<int64_t>(rows_.head(rows_.row_of_slot(slot)), p_.shape.num_heads_q - 1);
      factor *= lse.template join_sink<Machine>(load_sink<Machine, C.out_type>(p_.sink, head), seen);
      // A sink that takes all leaves a row its NaN, and one that is a NaN makes the row one.
      if (factor < kLeastNormal) factor = kLeastNormal;
    }
    if constexpr (!C.split) lse = {lse.sum(), 0.0f};  // one register until it is stored
    if constexpr (C.dropout) factor *= p_.score.dropout_scale;
    if constexpr (C.fp8()) factor *= value_scale;
  }

  template <class Out>
  TILEWISE_INLINE static uint32_t rounded_pair(const Out& O, int col_tile, int slot) {
    const auto& x = O.tile[0][col_tile];
    return Machine::template pack<C.out_type>(x[2 * slot], x[2 * slot + 1]);
  }

  TILEWISE_INLINE uint16_t* address_of(int32_t row) const {
    const Tensor4& t = p_.out;
    return static_cast<uint16_t*>(t.data) + work_.batch * t.batch_stride +
           static_cast<int64_t>(work_.q_row + rows_.query(row)) * t.seq_stride + rows_.head(row) * t.head_stride;
  }

  /// Of lse_accum and out_accum.
  TILEWISE_INLINE int64_t part_row(int32_t row) const {
    const AttentionShape& s = p_.shape;
    return work_.part * (s.batch_size * s.num_heads_q * s.seqlen_q) +
           dense_row(s, work_.batch, rows_.query(row), rows_.head(row));
  }

  /// As ForwardWeights had it for these rows.
  TILEWISE_INLINE float natural_scale() const {
    ScoreRows<Machine, C> scores;
    if constexpr (!ScoreRows<Machine, C>::kOneScale) scores.begin_scales(p_, work_, rows_);
    return scores.natural_scale(p_.score);
  }

  TILEWISE_INLINE void store_lse_of(int32_t row, const RowLse& lse) const {
    if constexpr (C.split) {
      if (rows_.is_among(row, work_.all_q)) lse.store<Machine>(p_.lse_accum, part_row(row));
      return;
    }
    if (!p_.softmax_lse.data || !rows_.is_among(row, work_.all_q)) return;
    const LseTensor& t = p_.softmax_lse;
    const int64_t at = work_.batch * t.batch_stride + rows_.head(row) * t.head_stride +
                       static_cast<int64_t>(work_.q_row + rows_.query(row)) * t.seq_stride;
    Machine::store_global(t.data + at, lse.sum());
  }

  TILEWISE_INLINE void store_boxes(Tile& tile) const {
    constexpr int kChunks = SwizzledTile<C.kRows, C.head_dim_v>::kChunks;
    const int32_t batch = p_.shape.cu_seqlens_q ? 0 : work_.batch;
    columns().template for_each<Machine, kChunks, Tile::kChunkColumns>(
        [&](int c, const TensorMap& map, int32_t column) {
          Machine::store_box(map, tile.chunk(c), column, 0, work_.q_row + rows_.first_query, work_.head, batch);
        });
    Machine::commit_stores();
  }

  TILEWISE_INLINE void copy_rows(Tile& tile) const {
    const auto pieces = static_cast<int32_t>(p_.shape.head_dim_v / 8);
    const bool turned = columns().turned;
    TILEWISE_NO_UNROLL
    for (auto unit = Machine::thread() % kWarpgroupThreads; unit < C.kRows * pieces; unit += kWarpgroupThreads) {
      const int32_t row = unit / pieces, piece = unit % pieces;
      if (!rows_.is_among(row, work_.all_q)) continue;
      const Chunk chunk = Machine::template load_shared<Chunk>(tile.piece(row, place_of_piece(piece, pieces, turned)));
      Machine::store_global(reinterpret_cast<Chunk*>(address_of(row) + piece * 8), chunk);
    }
  }

  const HopperForwardParams& p_;
  const SharedWork<Machine>& work_;
  QueryRows<Machine, C> rows_;
};

}  // namespace tilewise::device
