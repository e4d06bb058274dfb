// Tiles of K or V as boxes of TMA, by a warp: one lane loads a tile of contiguous keys, of pages each lane
// a box of its own.
#pragma once

#include "device/hopper/column_maps.h"
#include "device/hopper/forward_shared.h"
#include "device/hopper/params.h"
#include "device/hopper/tile_walk.h"
#include "device/kv_cache/places.h"
#include "device/sm90/load.h"

namespace tilewise::device {

/// All columns of a box, to rows of a tile from `to_row` on, of `kBlocks` blocks of the cluster.
template <int kBlocks = 1, class Machine, class Tile, bool kMayTurn>
TILEWISE_INLINE void copy_columns(Tile& to, int32_t to_row, const ColumnBoxes<kMayTurn>& boxes,
                                  Barrier<Machine>& landed, int32_t row, int32_t head, int32_t batch) {
  boxes.template for_each<Machine, Tile::kChunks, Tile::kChunkColumns>(
      [&](int c, const TensorMap& map, int32_t column) {
        uint8_t* const place = to.chunk(c) + to_row * kChunkRowBytes;
        load_box<kBlocks>(place, map, landed, column, row, head, batch);
      });
}

/// A tile of contiguous keys from `row` on, by one thread: in a cluster each block's half of it, to both.
template <auto C, class Machine, class Tile>
TILEWISE_INLINE void copy_keys(Tile& to, const ColumnBoxes<C.turned_columns>& boxes, Barrier<Machine>& landed,
                               int32_t row, int32_t head, int32_t batch) {
  int32_t share = 0;
  if constexpr (C.clustered) share = Machine::rank_in_cluster() * C.keys_of_box();
  copy_columns<C.blocks_of_cluster()>(to, share, boxes, landed, row + share, head, batch);
}

/// Those that one tile of queries sees.
template <class Machine, auto C>
class KeyBoxes {
  static constexpr bool kPaged = C.page_size != 0;
  static constexpr int32_t kKeys = C.keys_of_box(), kBoxes = C.block_n / kKeys;
  static_assert(kBoxes * kKeys == C.block_n && kBoxes <= 32, "boxes are lanes'");
  static_assert(!kPaged || !C.windowed || !lists_tiles<C>(), "first_key is of a window of pages, or of a list");

 public:
  TILEWISE_INLINE KeyBoxes(const HopperForwardParams& params, const ColumnBoxes<C.turned_columns>& boxes,
                           const WorkTile& work, int32_t head)
      : columns_(boxes), work_(work), places_{}, head_(head), page_(work.k_batch) {
    if constexpr (!kPaged) return;
    const CacheShape& cache = params.cache;
    places_ = {cache.block_table + work.k_batch * cache.block_table_stride, 0, lists_tiles<C>() ? 0 : work.first_key,
               work.seqlen_k, static_cast<int32_t>(cache.rows)};
    look_up_page(first_key_tile<C>(work));
  }

  /// Tiles come in their order: `next` is the one after this one, if there is one.
  template <class Tile>
  TILEWISE_INLINE void load(Tile& to, Barrier<Machine>& landed, int32_t tile, int32_t next) {
    const int32_t lane = Machine::lane();
    if (lane == 0) landed.arrive_and_expect(Tile::kBytes);
    if constexpr (kPaged) {
      Machine::wave_sync();
      if (lane < kBoxes) {
        const int32_t within = places_.within_page(first_key(tile));
        copy_columns(to, lane * kKeys, columns_, landed, within, head_, page_);
      }
      const int32_t after = lists_tiles<C>() ? next : tile + 1;  // known to the compiler, which makes less of it
      if (after < work_.end) look_up_page(after);
    } else {
      if (lane == 0) copy_keys<C>(to, columns_, landed, work_.k_row + tile * C.block_n, head_, page_);
    }
  }

  /// How many rows a tile begins with that are of no page of their own: on the left of a window a table need not name
  /// any, and what comes instead may be rows past the sequence's end.
  TILEWISE_INLINE int32_t stray_rows(int32_t tile) const {
    if constexpr (!kPaged || !C.windowed) return 0;
    return minimum(maximum(work_.first_key - tile * C.block_n, 0), C.block_n) / kKeys * kKeys;
  }

 private:
  TILEWISE_INLINE static int32_t first_key(int32_t tile) { return tile * C.block_n + Machine::lane() * kKeys; }

  /// Of this lane's box of a tile, a tile ahead: a copy that waits for its table takes twice as long. A box that no
  /// query sees loads what is near one that is seen.
  TILEWISE_INLINE void look_up_page(int32_t tile) {
    if (work_.seqlen_k == 0 || Machine::lane() >= kBoxes) return;
    page_ = places_.page_of(places_.place_of(first_key(tile)));
  }

  ColumnBoxes<C.turned_columns> columns_;
  const WorkTile& work_;
  CachePlaces<Machine, C.page_size> places_;
  int32_t head_, page_;
};

}  // namespace tilewise::device
