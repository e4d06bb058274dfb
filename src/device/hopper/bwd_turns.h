// The order of additions to dq_accum where it has one: a tile of queries gets those of the tiles of keys that it sees
// one after another, the last ones first, or the first ones. Blocks begin in that order too, so that one waits for none
// that has yet to begin. The first sums are stored, whatever was there.
#pragma once

#include "device/hopper/bwd_work.h"

namespace tilewise::device {

/// A warp's turns. A tile of queries has a word for each warp that adds to its own rows of it, or where a courier takes
/// the whole tile, one: 1 + the last tile of keys whose additions have arrived.
template <class Machine, auto C>
class BwdTurns {
 public:
  TILEWISE_INLINE BwdTurns(const BwdParamsOf<C>& p, const BwdWork& work, int warp)
      : p_(p),
        work_(work),
        at_(static_cast<int32_t>((work.batch * p.shape.num_heads_q + work.query_head) * p.turns_a_head) +
            work.template query_tile<C>(0) * C.turns_a_tile() + warp) {}

  /// Looks for the turn of the tile at hand, of which so many are left of its head: the answer is on its way while
  /// other things are done.
  TILEWISE_INLINE void ask(int32_t tiles_left) {
    found_ = begins_sums(tiles_left) ? awaited() : Machine::peek_global(p_.turns + at_);
  }
  /// Whether no tile of keys has its turn before this one.
  TILEWISE_INLINE bool begins_sums(int32_t tiles_left) const { return tiles_left > work_.tiles_behind; }
  /// Whether no tile of keys adds after this one.
  TILEWISE_INLINE bool ends_sums(int32_t tiles_left) const { return tiles_left <= work_.tiles_ended; }
  /// Whether it had come by then.
  TILEWISE_INLINE bool has_come() const { return found_ == awaited(); }
  /// Until it has.
  TILEWISE_INLINE void await() const { Machine::await_global(p_.turns + at_, awaited()); }

  /// Goes on to the next tile, perhaps of the next head. The one at hand is owed to the tile of keys before.
  TILEWISE_INLINE void advance(bool enters_head) {
    owed_ = at_;
    at_ += work_.template query_stride<C>() * C.turns_a_tile();
    if (enters_head) at_ += static_cast<int32_t>(p_.turns_a_head) - work_.queries.count() * C.turns_a_tile();
  }
  TILEWISE_INLINE bool owes() const { return owed_ >= 0; }
  /// By the thread whose additions have arrived, or that has synchronised with those who added.
  TILEWISE_INLINE void hand_on() {
    Machine::release_global(p_.turns + owed_, static_cast<uint32_t>(work_.tile + 1));
    owed_ = -1;
  }

 private:
  /// What the tile of keys that adds before leaves.
  TILEWISE_INLINE uint32_t awaited() const {
    return static_cast<uint32_t>(work_.tile + (work_.template from_last<C>() ? 0 : 2));
  }

  const BwdParamsOf<C>& p_;
  const BwdWork& work_;
  // Words of the tile at hand, and of the one before until it is handed on: dq_accum has 500 times as many floats.
  int32_t at_, owed_ = -1;
  uint32_t found_ = 0;
};

}  // namespace tilewise::device
