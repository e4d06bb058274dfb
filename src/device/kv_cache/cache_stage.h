// A stage of the streamed side of attention over a cache: a tile of keys and one of values, and what stands beside
// them.
#pragma once

#include "device/attention/selected_keys.h"
#include "device/kv_cache/config.h"
#include "device/tile/byte_tile.h"

namespace tilewise::device {

/// What may stand beside a tile's elements: bytes that are not yet widened, and scales of its tokens.
template <bool kWanted, int kTokens, int kKeyBytes, int kValueBytes>
struct TileBytes {};
template <int kTokens, int kKeyBytes, int kValueBytes>
struct TileBytes<true, kTokens, kKeyBytes, kValueBytes> {
  alignas(128) uint8_t k_bytes[kTokens * kKeyBytes], v_bytes[kTokens * kValueBytes];
};
template <bool kWanted, int kTokens>
struct TileScales {};
template <int kTokens>
struct TileScales<true, kTokens> {
  float k_scale[kTokens], v_scale[kTokens];
};

/// How tiles come: as attention's do, their elements gathered from anywhere, or the bytes of fp8 elements, to be
/// widened once they are there or to stay as they are; or straight to registers.
enum CacheWay : int { kPlainRows, kGatheredRows, kGatheredBytes, kByteTiles, kOperandTiles };

constexpr CacheWay way_of(const KvCacheForwardConfig& c) {
  if (c.direct_operands) return kOperandTiles;
  if (lies_in_rows(c)) return kPlainRows;
  return c.multiplies_bytes ? kByteTiles : c.keeps_bytes ? kGatheredBytes : kGatheredRows;
}

template <int kWay, class Ops, auto C>
struct CacheTiles : KvStage<Ops, C, kByRows, kByColumns> {};
template <class Ops, auto C>
struct CacheTiles<kByteTiles, Ops, C> {
  ByteTile<C.k_type, C.block_n, C.head_dim> k;
  ByteTile<C.v_type, C.block_n, C.head_dim_v> v;
};
/// Nothing but names for tiles that lie in registers.
template <class Ops, auto C>
struct CacheTiles<kOperandTiles, Ops, C> {
  struct Keys {
    using Held = typename Ops::template HeldRows<C.cache_type, C.k_type, C.block_n, C.head_dim>;
  };
  struct Values {
    using Held = typename Ops::template HeldColumns<C.cache_type, C.v_type, C.block_n, C.head_dim_v>;
  };
  static constexpr Keys k{};
  static constexpr Values v{};
};

template <class Ops, auto C>
struct CacheStage : CacheTiles<way_of(C), Ops, C>,
                    TileBytes<C.keeps_bytes != 0, C.block_n, C.head_dim, C.head_dim_v>,
                    TileScales<C.scales == kTokenScales, C.block_n>,
                    TilePlaces<!lies_in_rows(C), C.cache_type, C.block_n, places_a_stage(C)>,
                    TileKeys<C.selects != 0, C.block_n> {};

}  // namespace tilewise::device
