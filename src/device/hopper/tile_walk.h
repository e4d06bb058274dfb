// The tiles that a block visits, by what tile_lists has made of the classes of tiles. All warps of a block that load
// tiles or multiply them go by the same numbers, so that nobody tells another which tile comes next.
#pragma once

#include "device/attention/config.h"
#include "device/hopper/config.h"
#include "device/hopper/params.h"

namespace tilewise::device {

/// The parameters of a kernel whose scores functions may change.
template <auto C, class Params>
using WithTablesOf = typename FunctionsOf<C>::template ParamsOf<Params>;

// An entry of a list is a tile of which some is seen, in its order, and its class; ends are behind the last one.
inline constexpr uint32_t kListEnd = ~0u;
constexpr uint32_t list_entry(int32_t tile, uint32_t classes) { return static_cast<uint32_t>(tile) << 8 | classes; }

/// Whether a kernel goes by such lists, or by ranges: the host gives it what mask_tiles has found, or says that there
/// is none.
template <auto C>
constexpr bool lists_tiles() {
  return FunctionsOf<C>::kSkips;
}

/// Whether each head, or group of heads whose rows are one tile's, has lists of its own.
template <auto C>
constexpr bool tells_heads_apart() {
  using Functions = FunctionsOf<C>;
  if constexpr (requires { Functions::kSkipsByHead; }) {
    return Functions::kSkipsByHead;
  } else {
    return false;
  }
}
/// The row of lists or ranges of an own tile, of which each head has so many.
template <auto C, class Params>
TILEWISE_INLINE const uint8_t* row_of_tile(const Params& p, int32_t batch, int32_t head, int32_t own_tile,
                                           int32_t tiles_of_head) {
  int64_t row = own_tile;
  if constexpr (tells_heads_apart<C>()) row += int64_t{head} * tiles_of_head;
  return p.tile_classes.data + batch * p.tile_classes.batch_stride + row * p.tile_classes.streamed;
}

/// A tile to visit. classes: two bits of each warpgroup, a TileClass.
struct SeenTile {
  int32_t tile;
  uint32_t classes;

  TILEWISE_INLINE uint32_t class_of(int32_t warpgroup) const { return classes >> (2 * warpgroup) & 3u; }
};

TILEWISE_INLINE int32_t tile_of_entry(uint32_t entry) { return static_cast<int32_t>(entry >> 8); }
/// Of a tile of queries.
template <auto C, class Params>
TILEWISE_INLINE const uint32_t* list_of_tile(const Params& p, int32_t batch, int32_t head, int32_t own_tile) {
  return reinterpret_cast<const uint32_t*>(row_of_tile<C>(p, batch, head, own_tile, p.order.num_tiles));
}

/// Where a walk over the listed ones of tiles [work.begin, work.end) begins: its first entry, and where the next one
/// stands. Where none is listed, the first tile, which is hidden: something has to be multiplied.
struct WalkStart {
  uint32_t entry;
  int32_t next;
};
template <class Machine, auto C, class Params, class Work>
TILEWISE_INLINE WalkStart walk_start(const Params& p, const Work& work) {
  const uint32_t* const entries = list_of_tile<C>(p, work.batch, work.head, work.tile);
  WalkStart start{Machine::load_global(entries), 1};
  TILEWISE_NO_UNROLL
  for (; tile_of_entry(start.entry) < work.begin; ++start.next)
    start.entry = Machine::load_global(entries + start.next);
  if (tile_of_entry(start.entry) >= work.end) start.entry = list_entry(work.begin, 0);
  return start;
}

/// Over a list of tiles of keys. An entry is asked for a tile before it is looked at: shared memory's queue, through
/// which loads and shuffles go, is 250 cycles long beside matrix products. kByWarps: whole warps walk, else single
/// threads may.
template <class Machine, auto C, bool kByWarps>
class TileWalk {
 public:
  template <class Params>
  TILEWISE_INLINE TileWalk(const Params& p, int32_t batch, int32_t head, int32_t own_tile, const WalkStart& start,
                           int32_t end)
      : entries_(list_of_tile<C>(p, batch, head, own_tile) + start.next),
        end_(end),
        next_(start.entry),
        loaded_(load()) {}

  TILEWISE_INLINE bool is_done() const { return next_tile() >= end_; }
  /// The one at hand, or, where the walk is done, some number that is not below its end.
  TILEWISE_INLINE int32_t next_tile() const { return tile_of_entry(next_); }
  /// The tile at hand, behind which the walk goes on. Not where it is done.
  TILEWISE_INLINE SeenTile take() {
    const SeenTile taken{tile_of_entry(next_), next_ & 0xFFu};
    next_ = known(loaded_);
    if (next_ != kListEnd) loaded_ = load();
    return taken;
  }

 private:
  TILEWISE_INLINE static uint32_t known(uint32_t entry) {
    if constexpr (kByWarps) return static_cast<uint32_t>(uniform<Machine>(static_cast<int32_t>(entry)));
    return entry;
  }
  TILEWISE_INLINE uint32_t load() { return Machine::load_global(entries_++); }

  const uint32_t* entries_;
  int32_t end_;
  uint32_t next_, loaded_;
};

/// The first tile of keys of a tile of queries that its block loads.
template <auto C, class Work>
TILEWISE_INLINE int32_t first_key_tile(const Work& work) {
  if constexpr (lists_tiles<C>()) return tile_of_entry(static_cast<uint32_t>(work.first_entry));
  return work.begin;
}
/// visit(tile, next) for each tile of keys of a tile of queries that its block loads, and the one after it; behind the
/// last one that is no tile below work.end.
template <class Machine, auto C, bool kByWarps, class Params, class Work, class Visit>
TILEWISE_INLINE void for_each_key_tile(const Params& p, const Work& work, const Visit& visit) {
  if constexpr (lists_tiles<C>()) {
    const WalkStart start{static_cast<uint32_t>(work.first_entry), work.first_key};
    TileWalk<Machine, C, kByWarps> walk(p, work.batch, work.head, work.tile, start, work.end);
    TILEWISE_NO_UNROLL
    while (!walk.is_done()) {
      const int32_t tile = walk.take().tile;
      visit(tile, walk.next_tile());
    }
  } else {
    TILEWISE_NO_UNROLL
    for (int32_t tile = work.begin; tile < work.end; ++tile) visit(tile, tile + 1);
  }
}

// A row of ranges has those of tiles of which some is seen by any warpgroup's rows, and by each one's, and behind them
// all tiles' classes.
struct alignas(8) SeenRange {
  int32_t begin, end;
};

/// What a tile of keys and a tile of queries see of each other. By whole warps.
template <class Machine, auto C>
class TileRow {
 public:
  template <class Params>
  TILEWISE_INLINE TileRow(const Params& p, int32_t batch, int32_t key_head, int32_t own_tile)
      : row_(row_of_tile<C>(p, batch, key_head, own_tile, p.tiles)) {}

  /// Of all warpgroups' rows, or of one's.
  TILEWISE_INLINE SeenRange seen_by_any() const { return range(0); }
  TILEWISE_INLINE SeenRange seen_by(int32_t warpgroup) const { return range(1 + warpgroup); }
  /// Asks for a tile's classes, for class_of().
  TILEWISE_INLINE void ask(int32_t tile) {
    asked_ = Machine::load_global(row_ + HopperTileListsConfig::kRangeBytes + tile);
  }
  TILEWISE_INLINE uint32_t class_of(int32_t warpgroup) const {
    return static_cast<uint32_t>(uniform<Machine>(static_cast<int32_t>(asked_))) >> (2 * warpgroup) & 3u;
  }

 private:
  TILEWISE_INLINE SeenRange range(int32_t index) const {
    const auto found = Machine::load_global(reinterpret_cast<const SeenRange*>(row_) + index);
    return {uniform<Machine>(found.begin), uniform<Machine>(found.end)};
  }

  const uint8_t* row_;
  uint8_t asked_ = 0;
};

}  // namespace tilewise::device
