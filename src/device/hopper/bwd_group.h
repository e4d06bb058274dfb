// dk and dv of a key head whose query heads have tiles of keys of their own: the first one's sums are left in the
// workspace, the next ones' added to them, and the last one adds what is there to its own.
#pragma once

#include "device/hopper/bwd_work.h"
#include "device/sm90/warpgroup.h"
#include "device/tile/lane_sums.h"

namespace tilewise::device {

/// A tile of keys among those of all key heads.
TILEWISE_INLINE int64_t group_tile(const HopperBwdParams& p, const BwdWork& work) {
  return (int64_t{work.batch} * p.order.num_heads + work.head) * p.tiles + work.tile;
}

/// A warp's part of it: 16 keys of dk, of dv or of both. It has a word that says how many query heads are done, so that
/// sums have an order. A head is scheduled once those of as many key heads as fill the device have been: as a rule it
/// waits for none.
template <class Ops, auto C>
class BwdGroup {
  using Machine = typename Ops::Machine;

 public:
  /// warp: of those that hold gradients; sums_warp: of those that hold the same one.
  TILEWISE_INLINE BwdGroup(const BwdParamsOf<C>& p, const BwdWork& work, int warp, int sums_warp, int lane)
      : p_(p), share_(uniform<Machine>(work.share)), warp_(warp), sums_warp_(sums_warp), lane_(lane) {
    if constexpr (C.grouped) {
      tile_ = group_tile(p, work);
    }
  }

  /// Whether what is joined is complete then.
  TILEWISE_INLINE bool ends() const { return !C.grouped || share_ + 1 == p_.shares; }

  /// Until the query head before is done. `seen`: of the block's tiles of keys, how many queries saw before this one.
  template <class Shared>
  TILEWISE_INLINE void await(Shared& shared, uint32_t seen) const {
    if constexpr (C.tells_groups()) {
      if (p_.shares > 1) shared.group_come.wait(seen % 2);
    } else if constexpr (C.grouped) {
      if (share_ == 0) return;
      Machine::await_global_together(turn(), static_cast<uint32_t>(share_));
      Machine::wave_sync();
    }
  }
  template <class Sums>
  TILEWISE_INLINE void join_dv(Sums& sums) const {
    if (C.grouped && p_.shares > 1 && p_.dv.data) join(sums, p_.dv_accum + tile_ * p_.dv_accum_a_block);
  }
  template <class Sums>
  TILEWISE_INLINE void join_dk(Sums& sums) const {
    if (C.grouped && p_.shares > 1 && p_.dk.data) join(sums, p_.dk_accum + tile_ * p_.dk_accum_a_block);
  }
  /// Once all lanes have joined: the release waits for what they have stored or added.
  template <class Shared>
  TILEWISE_INLINE void hand_on(Shared& shared) const {
    if constexpr (C.tells_groups()) {
      if (p_.shares > 1) arrive_as_warp(shared.group_joined, lane_);
    } else if constexpr (C.grouped) {
      if (ends()) return;
      Machine::wave_sync();
      if (tells()) Machine::release_global(turn(), static_cast<uint32_t>(share_ + 1));
    }
  }

 private:
  /// By a lane that has sent no tile's gradients: it need not wait until these have arrived.
  TILEWISE_INLINE bool tells() const { return lane_ == Machine::kLanes - 1; }
  template <class Sums>
  TILEWISE_INLINE void join(Sums& sums, float* of_tile) const {
    float* const at = of_tile + sums_warp_ * LaneSums<Sums>::kFloats + 4 * lane_;
    if (ends()) {
      LaneSums<Sums>::template add<Machine>(sums, at);
    } else if (share_ == 0) {
      LaneSums<Sums>::template store<Machine>(sums, at);
    } else {
      LaneSums<Sums>::for_each_four(
          sums, [&](int offset, const float (&four)[4]) { Machine::add_global(at + offset, four); });
    }
  }
  TILEWISE_INLINE uint32_t* turn() const { return p_.dkdv_turns + tile_ * kGradientWarps + warp_; }

  const BwdParamsOf<C>& p_;
  const int32_t share_;
  const int warp_, sums_warp_, lane_;
  int64_t tile_ = 0;
};

/// By a warp of its own: finds out that a tile's turn has come, long before its sums are there, and hands it on once
/// they have been added. Its release is one of all that other warps had added when they came to the barrier.
template <class Machine, auto C, class Shared>
TILEWISE_INLINE void tell_of_group(const BwdParamsOf<C>& p, Shared& shared, const BwdWork& work, uint32_t seen) {
  if (p.shares == 1 || work.steps() == 0 || !work.template ends_keys<C>(p)) return;
  const int lane = Machine::lane();
  const int32_t share = uniform<Machine>(work.share);
  uint32_t* const turn = p.dkdv_turns + group_tile(p, work) * kGradientWarps + lane % kGradientWarps;
  if (share > 0) Machine::await_global_together(turn, static_cast<uint32_t>(share));
  Machine::wave_sync();
  if (lane == 0) shared.group_come.arrive();
  shared.group_joined.wait(seen % 2);
  Machine::wave_sync();
  if (share + 1 < p.shares && lane < kGradientWarps) Machine::release_global(turn, static_cast<uint32_t>(share + 1));
}

}  // namespace tilewise::device
