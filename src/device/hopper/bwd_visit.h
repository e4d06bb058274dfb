// In which order a warpgroup's tiles of queries are visited, and by which code: those in which weights may be hidden
// have code of their own.
#pragma once

#include "device/hopper/bwd_work.h"

namespace tilewise::device {

/// Whether tiles at either end of those seen may hide weights, not only the first ones.
template <auto C>
inline constexpr bool kMasksBothEnds = C.windowed || C.partial_rows;

/// Steps [from, to) in which no weight is hidden, where only tiles that see the diagonal hide some.
struct WholeSteps {
  int32_t from, to;
};
template <auto C>
TILEWISE_INLINE WholeSteps whole_steps(const QueryTiles& seen, bool from_last) {
  const int32_t count = seen.count();
  if constexpr (C.both_ways) {
    const int32_t hiding = minimum(maximum(seen.full_begin, seen.begin), seen.end) - seen.begin;
    return from_last ? WholeSteps{0, count - hiding} : WholeSteps{hiding, count};
  } else {
    return {count - (seen.end - maximum(seen.begin, seen.full_begin)), count};
  }
}

/// What a tile's code is made for: that no weight is hidden, that some may be, or that and large log-sum-exps.
enum BwdTileKind : int { kWholeTile, kMaskedTile, kLargeTile };

/// Whether tiles with large log-sum-exps have a loop of their own behind the others, within whose steps looking for
/// them and jumping over their code cost 3% of a pass at 64 columns. Where a head's tiles are a loop in a loop, or with
/// dropout, there are no registers for it, and a mask_mod would stand in both; of wide heads it costs nothing.
template <auto C>
inline constexpr bool kLoopsLarge =
    C.tells_large() && C.persistent && !C.shares_keys && !C.dropout && !FunctionsOf<C>::kHides;

/// Of tiles at hand, whether mask_mod hides some of what the rows with those classes see.
template <class Machine, auto C>
class HidingTiles {
 public:
  TILEWISE_INLINE HidingTiles(const BwdParamsOf<C>& p, const BwdWork& work, int32_t warpgroup)
      : row_(row_of(p, work)), warpgroup_(warpgroup) {}

  /// A tile is asked for long before an answer is looked at.
  TILEWISE_INLINE void ask([[maybe_unused]] int32_t tile) {
    if constexpr (FunctionsOf<C>::kSkips) row_.ask(tile);
  }
  /// Of the tile that was asked for last.
  TILEWISE_INLINE bool hides() const {
    if constexpr (FunctionsOf<C>::kSkips) {
      return row_.class_of(warpgroup_) != kTileSeen;
    } else {
      return FunctionsOf<C>::kHides;
    }
  }

 private:
  using Row = Choose<FunctionsOf<C>::kSkips, TileRow<Machine, C>, NoShared>;
  TILEWISE_INLINE static Row row_of(const BwdParamsOf<C>& p, const BwdWork& work) {
    if constexpr (FunctionsOf<C>::kSkips) {
      return {p, uniform<Machine>(work.batch), uniform<Machine>(work.head), uniform<Machine>(work.tile)};
    } else {
      return {};
    }
  }

  Row row_;
  int32_t warpgroup_;
};

/// step(Index<BwdTileKind>, tile, whether it is the first one, whether another one follows) for a head's tiles, from
/// the first one on, or in an order both ways from the last one if told so. has_large(): whether the next tile has
/// large log-sum-exps, where those have a loop: behind the first one that has, all tiles are visited by it.
template <auto C, class Hiding, class HasLarge, class Step>
TILEWISE_INLINE void visit_tiles(const QueryTiles& seen, Hiding& hiding, bool from_last, const HasLarge& has_large,
                                 const Step& step) {
  const int32_t count = seen.count();
  const auto tile_of = [&, first = from_last ? seen.end - 1 : seen.begin, stride = from_last ? -1 : 1](int32_t i) {
    return C.both_ways ? first + i * stride : seen.begin + i;
  };
  const auto visit = [&](auto masked, int32_t i) { step(masked, tile_of(i), i == 0, i + 1 < count); };
  int32_t i = 0;
  if constexpr (kMasksBothEnds<C> || FunctionsOf<C>::kHides) {
    if (count > 0) hiding.ask(tile_of(0));
    TILEWISE_NO_UNROLL
    for (; i < count; ++i) {
      const int32_t tile = tile_of(i);
      if (has_large()) break;
      const bool hides = hiding.hides();
      if (i + 1 < count) hiding.ask(tile_of(i + 1));
      if (tile >= seen.full_begin && tile < seen.full_end && !hides) {
        visit(Index<kWholeTile>{}, i);
      } else {
        visit(Index<kMaskedTile>{}, i);
      }
    }
  } else {
    const WholeSteps whole = whole_steps<C>(seen, from_last);
    TILEWISE_NO_UNROLL
    for (; i < whole.from && !has_large(); ++i) visit(Index<kMaskedTile>{}, i);
    TILEWISE_NO_UNROLL
    for (; i < whole.to && !has_large(); ++i) visit(Index<kWholeTile>{}, i);
    if constexpr (C.both_ways) {
      TILEWISE_NO_UNROLL
      for (; i < count && !has_large(); ++i) visit(Index<kMaskedTile>{}, i);
    }
  }
  if constexpr (kLoopsLarge<C>) {
    TILEWISE_NO_UNROLL
    for (; i < count; ++i) visit(Index<kLargeTile>{}, i);
  }
}

}  // namespace tilewise::device
