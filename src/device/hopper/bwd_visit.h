// In which order a warpgroup's tiles of queries are visited, and by which code: those in which weights may be hidden
// have code of their own.
#pragma once

#include "device/hopper/bwd_work.h"

namespace tilewise::device {

/// Whether tiles at either end of those seen may hide weights, not only the first ones.
template <HopperBwdConfig C>
inline constexpr bool kMasksBothEnds = C.windowed || C.partial_rows;

/// Steps [from, to) in which no weight is hidden, where only tiles that see the diagonal hide some.
struct WholeSteps {
  int32_t from, to;
};
template <HopperBwdConfig C>
TILEWISE_INLINE WholeSteps whole_steps(const QueryTiles& seen, bool from_last) {
  const int32_t count = seen.count();
  if constexpr (C.both_ways) {
    const int32_t hiding = minimum(maximum(seen.full_begin, seen.begin), seen.end) - seen.begin;
    return from_last ? WholeSteps{0, count - hiding} : WholeSteps{hiding, count};
  } else {
    return {count - (seen.end - maximum(seen.begin, seen.full_begin)), count};
  }
}

/// step(Index<whether some weights are hidden>, tile, whether it is the first one, whether another one follows) for a
/// head's tiles, from the first one on, or in an order both ways from the last one if told so.
template <HopperBwdConfig C, class Step>
TILEWISE_INLINE void visit_tiles(const QueryTiles& seen, bool from_last, const Step& step) {
  const int32_t count = seen.count();
  const auto tile_of = [&, first = from_last ? seen.end - 1 : seen.begin, stride = from_last ? -1 : 1](int32_t i) {
    return C.both_ways ? first + i * stride : seen.begin + i;
  };
  const auto visit = [&](auto masked, int32_t i) { step(masked, tile_of(i), i == 0, i + 1 < count); };
  int32_t i = 0;
  if constexpr (kMasksBothEnds<C>) {
    TILEWISE_NO_UNROLL
    for (; i < count; ++i) {
      const int32_t tile = tile_of(i);
      if (tile >= seen.full_begin && tile < seen.full_end) {
        visit(Index<0>{}, i);
      } else {
        visit(Index<1>{}, i);
      }
    }
  } else {
    const WholeSteps whole = whole_steps<C>(seen, from_last);
    TILEWISE_NO_UNROLL
    for (; i < whole.from; ++i) visit(Index<1>{}, i);
    TILEWISE_NO_UNROLL
    for (; i < whole.to; ++i) visit(Index<0>{}, i);
    if constexpr (C.both_ways) {
      TILEWISE_NO_UNROLL
      for (; i < count; ++i) visit(Index<1>{}, i);
    }
  }
}

}  // namespace tilewise::device
