// The order in which a launch's tiles are worked on, and the band of keys that queries see.
#pragma once

#include "device/common/mask.h"
#include "device/hopper/params.h"
#include "device/tile/platform.h"

namespace tilewise::device {

/// Keys minus diagonal that the mask and window leave to a query: [low, high].
struct KeyBand {
  int32_t low, high;
};
TILEWISE_INLINE KeyBand key_band(const ScoreParams& p) {
  constexpr int64_t kFar = 0x3FFFFFFF;
  return {static_cast<int32_t>(p.window_left < 0 ? -kFar : -minimum<int64_t>(p.window_left, kFar)),
          static_cast<int32_t>(p.window_right < 0 ? kFar : minimum<int64_t>(p.window_right, kFar))};
}

struct OrderPlace {
  int32_t tile, head, batch;
};

/// Where tile `index` of the forward pass's order stands. Divisions by variables: by threads that others do not wait
/// for.
TILEWISE_INLINE OrderPlace place_in_order(const TileOrder& order, int32_t index) {
  const int32_t all_heads = order.num_heads * order.batch_size;
  const bool late = index >= order.first_late_head * order.num_tiles;
  const int32_t begin = late ? order.first_late_head : 0, end = late ? all_heads : order.first_late_head;
  const int32_t heads = end - begin, long_tiles = order.num_tiles - (late ? order.short_tiles : 0);
  index -= begin * order.num_tiles;
  int32_t tile, head;
  if (index < heads * long_tiles) {
    const int32_t a_set = order.heads_at_once * long_tiles, set = index / a_set, rest = index - set * a_set;
    const int32_t first_head = set * order.heads_at_once, count = minimum(order.heads_at_once, heads - first_head);
    tile = order.num_tiles - 1 - rest / count;
    head = begin + first_head + rest % count;
  } else {
    const int32_t rest = index - heads * long_tiles;
    tile = order.short_tiles - 1 - rest / heads;
    head = begin + rest % heads;
  }
  const int32_t inside = order.batch_inside ? order.batch_size : order.num_heads, outer = head / inside;
  head -= outer * inside;
  return order.batch_inside ? OrderPlace{tile, outer, head} : OrderPlace{tile, head, outer};
}

/// The backward pass's, at a sixth of the cost: each division by a variable is a chain of 30 instructions.
TILEWISE_INLINE OrderPlace place_in_order(const TileOrder& order, const OrderDivisors& by, int32_t index) {
  const int32_t heads = order.num_heads * order.batch_size, long_tiles = order.num_tiles - order.short_tiles;
  int32_t tile, head;
  if (index < heads * long_tiles) {
    const int32_t a_set = order.heads_at_once * long_tiles, set = minimum(divide(index, by.by_set_tiles), by.last_set),
                  rest = index - set * a_set, first_head = set * order.heads_at_once;
    const bool whole = set < by.last_set;
    const int32_t row = whole ? divide(rest, by.by_set) : divide(rest, by.by_last_set);
    tile = order.num_tiles - 1 - row;
    head = first_head + rest - row * (whole ? order.heads_at_once : heads - first_head);
  } else {
    const int32_t rest = index - heads * long_tiles, row = divide(rest, by.by_all_heads);
    tile = order.short_tiles - 1 - row;
    head = rest - row * heads;
  }
  const int32_t batch = divide(head, by.by_heads);
  return {tile, head - batch * order.num_heads, batch};
}

}  // namespace tilewise::device
