// fp32 sums that a wave keeps in the workspace, in the order in which its lanes hold them: what the wave moves
// at once lies 512 bytes in a row, whatever the layout of its accumulators.
#pragma once

#include "device/tile/fragment.h"

namespace tilewise::device {

template <class Sums>
struct LaneSums {
  static_assert(Sums::FragmentLayout::kRegisters == 4, "a lane's registers of a tile are 16 bytes");
  static constexpr int kAStep = 4 * Sums::FragmentLayout::kLanes;             // floats of a tile
  static constexpr int kFloats = Sums::kRowTiles * Sums::kColTiles * kAStep;  // of a wave

  /// visit(offset from the lane's first float, the 4 registers there).
  template <class Visit>
  TILEWISE_INLINE static void for_each_four(Sums& sums, const Visit& visit) {
    TILEWISE_UNROLL
    for (int r = 0; r < Sums::kRowTiles; ++r) {
      TILEWISE_UNROLL
      for (int c = 0; c < Sums::kColTiles; ++c) visit((r * Sums::kColTiles + c) * kAStep, sums.tile[r][c].value);
    }
  }

  /// sums += what stands in memory; `from` is the lane's first float.
  template <class Machine>
  TILEWISE_INLINE static void add(Sums& sums, const float* from) {
    for_each_four(sums, [&](int offset, float (&four)[4]) {
      const auto run = Machine::load_global(reinterpret_cast<const FloatRun<4>*>(from + offset));
      TILEWISE_UNROLL
      for (int i = 0; i < 4; ++i) four[i] += run.value[i];
    });
  }

  template <class Machine>
  TILEWISE_INLINE static void store(Sums& sums, float* to) {
    for_each_four(sums, [&](int offset, float (&four)[4]) {
      const FloatRun<4> run{{four[0], four[1], four[2], four[3]}};
      Machine::store_global(reinterpret_cast<FloatRun<4>*>(to + offset), run);
    });
  }
};

}  // namespace tilewise::device
