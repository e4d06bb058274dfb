// The order of additions to dq_accum where it has one: a tile of queries gets those of the tiles of keys that it sees
// one after another, the first ones first. Blocks begin in that order too, so that one waits for none that has yet to
// begin.
#pragma once

#include "device/hopper/bwd_work.h"

namespace tilewise::device {

/// A warp's turns. Each warp of the warpgroup that adds up dq has rows of its own, and a word for each tile of queries:
/// 1 + the last tile of keys whose additions have arrived.
template <class Machine, HopperBwdConfig C>
struct BwdTurns {
  /// Until the tile of keys before has added to a step's tile of queries, if it does.
  TILEWISE_INLINE static void await(const HopperBwdParams& p, const BwdWork& work, int32_t step, int warp) {
    const QueryPlace place = query_place<C>(work, step);
    if (place.tile < work.end_before)
      Machine::await_global(word(p, work, place, warp), static_cast<uint32_t>(work.tile));
  }
  /// By the thread whose additions, or those it has synchronised with, have arrived.
  TILEWISE_INLINE static void hand_on(const HopperBwdParams& p, const BwdWork& work, int32_t step, int warp) {
    const QueryPlace place = query_place<C>(work, step);
    Machine::release_global(word(p, work, place, warp), static_cast<uint32_t>(work.tile + 1));
  }

 private:
  TILEWISE_INLINE static uint32_t* word(const HopperBwdParams& p, const BwdWork& work, const QueryPlace& place,
                                        int warp) {
    const int64_t head = work.batch * p.shape.num_heads_q + work.head * work.group + place.head;
    return p.turns + head * p.turns_a_head + place.tile * C.kDqWarps + warp;
  }
};

}  // namespace tilewise::device
