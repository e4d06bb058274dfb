// Rows gathered into a pipeline's stages by lanes' own copies (cp.async), since a TMA box of one row costs 45 cycles of
// the copy engine. Several warps do stages in turn.
#pragma once

#include "device/sm90/pipeline.h"

namespace tilewise::device {

/// A warp's place among kWarps that copy: stage n of the pipeline is that of warp n % kWarps. Copies arrive at its
/// barrier by themselves, kWarpArrivals of them. All lanes make every call.
template <class Pipe, int kWarps>
class RowCopies {
  using Machine = typename Pipe::Machine;
  static constexpr int kStages = Pipe::kStages;
  static_assert(kStages >= kWarps, "a warp knows by its own last stage that a barrier is at most one phase behind");

 public:
  TILEWISE_INLINE RowCopies(Pipe& pipe, int32_t turn)
      : ring_(pipe.ring), next_(static_cast<uint32_t>(turn)), landed_(next_) {}

  /// Returns the first of a tile's steps, each a stage, that is this warp's; the others are kWarps further each.
  TILEWISE_INLINE int32_t skip_to_own(int32_t steps) {
    const auto own = static_cast<int32_t>(next_ - passed_);
    passed_ += static_cast<uint32_t>(steps);
    return own;
  }
  /// Returns the next stage, once it is empty.
  TILEWISE_INLINE uint32_t begin() const {
    const auto place = ring_place<kStages>(next_);
    place.wait_empty(ring_);
    return place.stage;
  }
  /// Has the stage's barrier count its copies.
  TILEWISE_INLINE void commit() {
    ring_.full[ring_place<kStages>(next_).stage].arrive_after_copies();
    next_ += kWarps;
    landed_ += kWarps;
  }

  /// The other way, of stages that lanes change before anybody sees them: closes a group of copies, and goes on.
  TILEWISE_INLINE void leave() {
    Machine::commit_copies();
    next_ += kWarps;
  }
  /// How many have been left and not handed over.
  TILEWISE_INLINE int32_t left() const { return static_cast<int32_t>(next_ - landed_) / kWarps; }
  /// Returns the first of them, once no more than kLeft others are under way.
  template <int kLeft>
  TILEWISE_INLINE uint32_t wait_landed() const {
    Machine::template wait_copies<kLeft>();
    Machine::wave_sync();
    return ring_place<kStages>(landed_).stage;
  }
  /// Hands it over, which the matrix unit reads.
  TILEWISE_INLINE void hand_over() {
    Machine::fence_shared_writes();
    arrive_as_lanes(ring_.full[ring_place<kStages>(landed_).stage]);
    landed_ += kWarps;
  }

 private:
  Ring<Machine, kStages>& ring_;
  uint32_t next_, landed_, passed_ = 0;  // stages, counted from the first
};

}  // namespace tilewise::device
