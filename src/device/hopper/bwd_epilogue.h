// From accumulators to dk and dv: through shared memory that nobody reads any more, by TMA. Sums over a
// part of the queries go to the workspace as they lie.
#pragma once

#include "device/attention/dkdv_accum.h"
#include "device/hopper/bwd_shared.h"
#include "device/hopper/bwd_work.h"
#include "device/sm90/warpgroup.h"
#include "device/tile/registers.h"

namespace tilewise::device {

template <class Ops, auto C>
class BwdEpilogue {
  using Machine = typename Ops::Machine;

 public:
  /// warpgroup: whose 64 rows of a tile they are.
  TILEWISE_INLINE BwdEpilogue(const BwdParamsOf<C>& params, const BwdWork& work, int warpgroup, int lane)
      : p_(params), work_(work), warpgroup_(warpgroup), lane_(lane) {}

  template <class Tile, class Sums>
  TILEWISE_INLINE void store_dv(Tile& values, Sums& sums) const {
    const float scale = C.dropout ? p_.score.dropout_scale : 1.0f;
    if constexpr (C.split) {
      if (p_.dv.data) store_part(sums, p_.dv_accum, p_.dv_accum_a_block, scale);
    } else {
      store(values, sums, p_.dv, p_.dv_map, p_.shape.head_dim_v, scale);
      commit();
    }
  }
  template <class Tile, class Sums>
  TILEWISE_INLINE void store_dk(Tile& keys, Sums& sums) const {
    if constexpr (C.split) {
      if (p_.dk.data) store_part(sums, p_.dk_accum, p_.dk_accum_a_block, 1.0f);
    } else {
      store(keys, sums, p_.dk, p_.dk_map, p_.shape.head_dim, p_.score.softmax_scale);
      commit();
    }
  }
  /// Zeros for keys that no query sees.
  TILEWISE_INLINE void clear_dv() const { clear<C.head_dim_v>(p_.dv, p_.shape.head_dim_v); }
  TILEWISE_INLINE void clear_dk() const { clear<C.head_dim>(p_.dk, p_.shape.head_dim); }

 private:
  /// What bwd_convert_dkdv adds up, scales and clears where rows are not used.
  template <class Sums>
  TILEWISE_INLINE void store_part(Sums& sums, float* accum, int64_t a_block, float scale) const {
    const TileOrder& order = p_.order;
    const int64_t head = static_cast<int64_t>(work_.batch) * order.num_heads + work_.head;
    const int wave = warpgroup_ * (C.kRows / 16) + warp_row<Machine>() / 16;
    float* const part = dkdv_part(accum, a_block, head * order.num_tiles + work_.tile, order.num_splits, work_.part);
    if constexpr (C.dropout) sums.for_each(0, [&](int, int, auto&& x) { x *= scale; });
    LaneSums<Sums>::template store<Machine>(sums, part + wave * LaneSums<Sums>::kFloats + 4 * lane_);
  }

  /// Rounds a warpgroup's sums into its rows of a tile, which nobody reads any more, and begins their way to memory.
  template <class Tile, class Sums>
  TILEWISE_INLINE void store(Tile& tile, Sums& sums, const Tensor4& to, const TensorMap& map, int64_t dim,
                             float scale) const {
    if (!to.data) return;
    const int32_t first = warpgroup_ * C.kRows;
    scale_rows(sums, scale);
    const int place = tile.place_of(first + warp_row<Machine>() + lane_ % 16, lane_ / 16);
    TILEWISE_UNROLL
    for (int k = 0; k < Sums::kCols / 16; ++k) {
      uint32_t packed[4];
      TILEWISE_UNROLL
      for (int i = 0; i < 4; ++i) {
        const Sm80Accumulator& x = sums.tile[0][2 * k + i / 2];
        packed[i] = Machine::template pack<C.k_type>(x[i % 2 * 2], x[i % 2 * 2 + 1]);
      }
      Machine::store_matrices(tile.pair_piece(place, k), packed);
    }
    Machine::fence_shared_writes();
    Machine::named_barrier_sync(kKeyRows + Machine::thread() / kWarpgroupThreads, kWarpgroupThreads);
    if (!C.lengths || first + C.kRows <= work_.rows) {
      if (leads_warpgroup<Machine>()) store_boxes(tile, map);
    } else {
      copy_rows(tile, to, dim);  // the rows behind the last one are another sequence's
    }
  }

  /// Rows that are not used get zeros, whatever they have summed up.
  template <class Sums>
  TILEWISE_INLINE void scale_rows(Sums& sums, float scale) const {
    if constexpr (C.lengths) {
      const int32_t first = work_.first_key + warpgroup_ * C.kRows + warp_row<Machine>();
      sums.scale_used_rows(lane_, scale, [&](int row) { return work_.is_used(first + row); });
    } else {
      sums.for_each(0, [&](int, int, auto&& x) { x *= scale; });
    }
  }

  template <class Tile>
  TILEWISE_INLINE void store_boxes(Tile& tile, const TensorMap& map) const {
    const int32_t batch = p_.shape.cu_seqlens_k ? 0 : work_.batch, first = warpgroup_ * C.kRows;
    TILEWISE_UNROLL
    for (int c = 0; c < Tile::kChunks; ++c) {
      Machine::store_box(map, tile.chunk(c) + first * kChunkRowBytes, c * Tile::kChunkColumns, 0, work_.k_row + first,
                         work_.head, batch);
    }
  }
  /// One group of stores of each gradient, whatever there is to store.
  TILEWISE_INLINE static void commit() {
    if (leads_warpgroup<Machine>()) Machine::commit_stores();
  }

  template <class Tile>
  TILEWISE_INLINE void copy_rows(Tile& tile, const Tensor4& to, int64_t dim) const {
    const int32_t first = warpgroup_ * C.kRows;
    write_rows<8 * Tile::kChunks>(to, dim, [&](int32_t row, int32_t piece) {
      return Machine::template load_shared<Chunk>(tile.piece(first + row, piece));
    });
  }
  template <int kCols>
  TILEWISE_INLINE void clear(const Tensor4& to, int64_t dim) const {
    if (to.data) write_rows<kCols / 8>(to, dim, [](int32_t, int32_t) { return Chunk{{0, 0, 0, 0}}; });
  }
  /// By 16 bytes a lane, which piece_of(row of the warpgroup's, piece of it) gives.
  template <int kPieces, class Piece>  // a division by a constant; those past dim are left out
  TILEWISE_INLINE void write_rows(const Tensor4& to, int64_t dim, const Piece& piece_of) const {
    const int32_t first = warpgroup_ * C.kRows, count = minimum(work_.rows - first, C.kRows);
    TILEWISE_NO_UNROLL
    for (auto unit = Machine::thread() % kWarpgroupThreads; unit < count * kPieces; unit += kWarpgroupThreads) {
      const int32_t row = unit / kPieces, piece = unit % kPieces;
      if (piece * 8 >= dim) continue;
      const Chunk chunk = piece_of(row, piece);
      auto* const at = static_cast<uint16_t*>(to.data) + work_.batch * to.batch_stride +
                       static_cast<int64_t>(work_.k_row + first + row) * to.seq_stride + work_.head * to.head_stride;
      Machine::store_global(reinterpret_cast<Chunk*>(at + piece * 8), chunk);
    }
  }

  const BwdParamsOf<C>& p_;
  const BwdWork& work_;
  const int warpgroup_, lane_;
};

}  // namespace tilewise::device
