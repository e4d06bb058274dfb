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
  TILEWISE_INLINE RowCopies(Pipe& pipe, int32_t turn) : ring_(pipe.ring), next_(static_cast<uint32_t>(turn)) {}

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
  }

 protected:
  Ring<Machine, kStages>& ring_;
  uint32_t next_, passed_ = 0;  // stages, counted from the first
};

}  // namespace tilewise::device
