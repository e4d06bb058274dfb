// From classes of tiles to what blocks walk by: for a tile of queries a list of the tiles of keys that are seen, for a
// tile of keys the range of tiles of queries. A warp makes a row.
#pragma once

#include "device/hopper/config.h"
#include "device/hopper/tile_walk.h"
#include "device/sm90/contract.h"

namespace tilewise::device {

template <Sm90TileOps Ops, HopperTileListsConfig C>
class HopperTileLists {
  using Machine = typename Ops::Machine;

 public:
  using Params = HopperTileListsParams;
  using Shared = NoShared;

  TILEWISE_INLINE static void run(const Params& p, Shared&) {
    const int32_t row = Machine::block() * C.waves + Machine::thread() / Machine::kLanes;
    if (row >= p.num_rows) return;
    wait_for_step_before<Machine>();
    const uint8_t* const classes = p.classes.data + static_cast<int64_t>(row) * p.classes.streamed;
    uint8_t* const to = p.lists.data + static_cast<int64_t>(row) * p.lists.streamed;
    if constexpr (C.ranges) {
      write_ranges(to, classes, p.classes.streamed);
    } else {
      write_list(reinterpret_cast<uint32_t*>(to), classes, p.classes.streamed);
    }
  }

 private:
  TILEWISE_INLINE static uint32_t class_at(const uint8_t* classes, int32_t tile, int32_t count) {
    return tile < count ? Machine::load_global(classes + tile) : 0u;
  }

  TILEWISE_INLINE static void write_list(uint32_t* to, const uint8_t* classes, int32_t count) {
    const int32_t lane = Machine::lane();
    TILEWISE_NO_UNROLL
    for (int32_t first = 0; first < count; first += Machine::kLanes) {
      const uint32_t found = class_at(classes, first + lane, count), seen = Machine::lanes_where(found != 0);
      const uint32_t before = seen & ((1u << lane) - 1);
      if (found != 0) Machine::store_global(to + popcount(before), list_entry(first + lane, found));
      to += popcount(seen);
    }
    if (lane < C.kEnds) Machine::store_global(to + lane, kListEnd);
  }

  TILEWISE_INLINE static void write_ranges(uint8_t* to, const uint8_t* classes, int32_t count) {
    constexpr uint32_t kBits[C.kRanges] = {0xFFu, 0x03u, 0x0Cu, 0x30u, 0xC0u};
    const int32_t lane = Machine::lane();
    int32_t before[C.kRanges], end[C.kRanges];  // count - begin, so that the highest is looked for
    for (int i = 0; i < C.kRanges; ++i) before[i] = end[i] = 0;
    TILEWISE_NO_UNROLL
    for (int32_t tile = lane; tile < count; tile += Machine::kLanes) {
      const uint32_t found = Machine::load_global(classes + tile);
      Machine::store_global(to + C.kRangeBytes + tile, static_cast<uint8_t>(found));
      TILEWISE_UNROLL
      for (int i = 0; i < C.kRanges; ++i) {
        if ((found & kBits[i]) == 0) continue;
        before[i] = maximum(before[i], count - tile);
        end[i] = tile + 1;
      }
    }
    TILEWISE_UNROLL
    for (int i = 0; i < C.kRanges; ++i) {
      const int32_t last = highest_of_wave<Machine>(end[i]), first = count - highest_of_wave<Machine>(before[i]);
      const SeenRange range{last == 0 ? 0 : first, last};
      if (lane == 0) Machine::store_global(reinterpret_cast<SeenRange*>(to) + i, range);
    }
  }
};

}  // namespace tilewise::device
