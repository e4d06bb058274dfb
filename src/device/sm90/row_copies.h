// Rows gathered into a pipeline's stages by lanes' own copies (cp.async), since a TMA box of one row costs 45 cycles of
// the copy engine. Several warps do stages in turn.
#pragma once

#include "device/sm90/pipeline.h"

namespace tilewise::device {

/// A warp's place among kWarps that copy: stage n of the pipeline is that of warp n % kWarps, which arrives at its
/// barrier once the copies have landed, some stages later. All lanes make every call.
template <class Pipe, int kWarps>
class RowCopies {
  using Machine = typename Pipe::Machine;
  static constexpr int kStages = Pipe::kStages;
  /// Stages that a warp has under way. What it begins must not wait for one that it has yet to announce, and consumers
  /// hand a stage back once they have the next one.
  static constexpr int kMostPending = minimum(3, (kStages - 2) / kWarps);
  static_assert(kStages >= kWarps, "a warp knows by its own last stage that a barrier is at most one phase behind");

 public:
  TILEWISE_INLINE RowCopies(Pipe& pipe, int32_t turn)
      : ring_(pipe.ring), next_(static_cast<uint32_t>(turn)), oldest_(next_) {}

  /// Returns the first of a tile's steps, each a stage, that is this warp's; the others are kWarps further each.
  TILEWISE_INLINE int32_t skip_to_own(int32_t steps) {
    const auto own = static_cast<int32_t>(next_ - passed_);
    passed_ += static_cast<uint32_t>(steps);
    return own;
  }
  /// Returns the next stage, once it is empty. What is under way is announced before the warp waits for room, which
  /// consumers make by what they have been told.
  TILEWISE_INLINE uint32_t begin() {
    const auto place = ring_place<kStages>(next_);
    const bool is_empty = place.test_empty(ring_);
    if (Machine::any(!is_empty)) {
      finish();
      if (!is_empty) place.wait_empty(ring_);
    }
    return place.stage;
  }
  /// Closes the group of copies to that stage.
  TILEWISE_INLINE void commit() {
    Machine::commit_copies();
    next_ += kWarps;
    if (++pending_ <= kMostPending) return;
    Machine::template wait_copies<kMostPending>();
    announce();
  }
  /// Waits for all copies.
  TILEWISE_INLINE void finish() {
    Machine::template wait_copies<0>();
    while (pending_ > 0) announce();
  }

 private:
  TILEWISE_INLINE void announce() {
    Machine::fence_shared_writes();
    arrive_as_warp(ring_.full[ring_place<kStages>(oldest_).stage]);
    oldest_ += kWarps, --pending_;
  }

  Ring<Machine, kStages>& ring_;
  uint32_t next_, oldest_, passed_ = 0;  // stages, counted from the first
  int32_t pending_ = 0;
};

}  // namespace tilewise::device
