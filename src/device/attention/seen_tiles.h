// The tiles that a block visits, by what mask_tiles has found.
#pragma once

#include "device/attention/config.h"
#include "device/attention/params.h"
#include "device/tile/platform.h"

namespace tilewise::device {

/// Heads that are packed have tiles of their own, of which nothing is known but in the KV cache step.
template <auto C>
constexpr bool skips_tiles() {
  using Functions = FunctionsOf<C>;
  if constexpr (!Functions::kSkips) {
    return false;
  } else if constexpr (requires { C.pack_gqa; }) {
    return !C.pack_gqa || Functions::kAtPositions;
  } else {
    return true;
  }
}

/// Of a block's own rows. Without classes every tile is seen, and may have to be masked.
template <class Machine, auto C>
class SeenTiles {
 public:
  template <class Params>
  TILEWISE_INLINE SeenTiles(const Params& p, int64_t batch, int64_t own_tile) {
    if constexpr (skips_tiles<C>()) {
      classes_ = p.tile_classes.data + batch * p.tile_classes.batch_stride + own_tile * p.tile_classes.streamed;
    }
  }

  TILEWISE_INLINE bool sees(int32_t tile) const { return !skips_tiles<C>() || class_of(tile) != kTileHidden; }
  /// Whether mask_mod hides some of a tile that is seen.
  TILEWISE_INLINE bool hides_of(int32_t tile) const {
    if constexpr (skips_tiles<C>()) {
      return class_of(tile) != kTileSeen;
    } else {
      return FunctionsOf<C>::kHides;
    }
  }
  /// The first of [tile, end) that is seen, or `end` or what follows it.
  TILEWISE_INLINE int32_t first_seen(int32_t tile, int32_t end) const {
    if constexpr (skips_tiles<C>()) {
      TILEWISE_NO_UNROLL
      while (tile < end && !sees(tile)) ++tile;
    }
    return tile;
  }

 private:
  TILEWISE_INLINE int32_t class_of(int32_t tile) const {
    return uniform<Machine>(static_cast<int32_t>(Machine::load_global(classes_ + tile)));
  }

  const uint8_t* classes_ = nullptr;
};

}  // namespace tilewise::device
