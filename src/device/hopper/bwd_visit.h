// In which order a warpgroup's tiles of queries are visited, and by which code: those in which weights may be hidden have
// code of their own.
#pragma once

#include "device/hopper/bwd_work.h"

namespace tilewise::device {

/// step(Index<whether some weights are hidden>, tile, whether it is the first one, whether another one follows) for a
/// head's tiles, from the first one on.
template <HopperBwdConfig C, class Step>
TILEWISE_INLINE void visit_upwards(const QueryTiles& seen, const Step& step) {
  // Code of their own for tiles masked at either end spares packed sequences 1 to 2% at head_dim 128; of tiles of 128
  // queries, wide heads and blocks of one tile of keys it would be a third more, and has not been timed.
  constexpr bool kBothEnds = C.windowed || C.partial_rows, kOwnCode = C.persistent && !C.shares_keys && C.block_m <= 64;
  const int32_t count = seen.count(), full = seen.end - maximum(seen.begin, seen.full_begin);
  const auto visit = [&](auto masked, int32_t i) { step(masked, seen.begin + i, i == 0, i + 1 < count); };
  int32_t i = 0;
  if constexpr (kBothEnds && kOwnCode) {
    const int32_t full_begin = minimum(seen.full_begin, seen.end) - seen.begin,
                  full_end = minimum(seen.full_end, seen.end) - seen.begin;
    TILEWISE_NO_UNROLL
    for (; i < full_begin; ++i) visit(Index<1>{}, i);
    TILEWISE_NO_UNROLL
    for (; i < full_end; ++i) visit(Index<0>{}, i);
    TILEWISE_NO_UNROLL
    for (; i < count; ++i) visit(Index<1>{}, i);
  } else if constexpr (kBothEnds) {
    TILEWISE_NO_UNROLL
    for (; i < count; ++i) {
      const int32_t tile = seen.begin + i;
      if (tile >= seen.full_begin && tile < seen.full_end) {
        visit(Index<0>{}, i);
      } else {
        visit(Index<1>{}, i);
      }
    }
  } else {
    TILEWISE_NO_UNROLL
    for (; i < count - full; ++i) visit(Index<1>{}, i);
    TILEWISE_NO_UNROLL
    for (; i < count; ++i) visit(Index<0>{}, i);
  }
}

/// The same, from the last one on if told so. Tiles of 128 queries that may be masked at either end share one loop.
template <HopperBwdConfig C, class Step>
TILEWISE_INLINE void visit_either_way(const QueryTiles& seen, bool from_last, const Step& step) {
  const int32_t count = seen.count(), first = from_last ? seen.end - 1 : seen.begin, stride = from_last ? -1 : 1;
  const auto visit = [&](auto masked, int32_t i) { step(masked, first + i * stride, i == 0, i + 1 < count); };
  // The whole ones, from seen.begin on and as steps.
  constexpr bool kBothEnds = C.windowed || C.partial_rows;
  const auto place = [&](int32_t tile) { return minimum(maximum(tile, seen.begin), seen.end) - seen.begin; };
  const int32_t begin = place(seen.full_begin), end = maximum(kBothEnds ? place(seen.full_end) : count, begin),
                from = from_last ? count - end : begin, to = from_last ? count - begin : end;
  int32_t i = 0;
  if constexpr (kBothEnds && C.block_m > 64) {
    TILEWISE_NO_UNROLL
    for (; i < count; ++i) {
      if (i >= from && i < to) {
        visit(Index<0>{}, i);
      } else {
        visit(Index<1>{}, i);
      }
    }
  } else {
    TILEWISE_NO_UNROLL
    for (; i < from; ++i) visit(Index<1>{}, i);
    TILEWISE_NO_UNROLL
    for (; i < to; ++i) visit(Index<0>{}, i);
    TILEWISE_NO_UNROLL
    for (; i < count; ++i) visit(Index<1>{}, i);
  }
}

/// The same, in the order in which dq's sums want them.
template <HopperBwdConfig C, class Step>
TILEWISE_INLINE void visit_tiles(const QueryTiles& seen, bool from_last, const Step& step) {
  if constexpr (C.both_ways) {
    visit_either_way<C>(seen, from_last, step);
  } else {
    visit_upwards<C>(seen, step);
  }
}

}  // namespace tilewise::device
