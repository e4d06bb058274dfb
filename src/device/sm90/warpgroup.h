// Operations of a warpgroup's lanes, made of what their machine offers.
#pragma once

#include "device/sm90/mbarrier.h"
#include "device/tile/fragment.h"

namespace tilewise::device {

inline constexpr int kWarpgroupThreads = 128;

/// This warp's first row of its warpgroup's 64.
template <class Machine>
TILEWISE_INLINE int32_t warp_row() {
  return Machine::thread() / 32 % 4 * 16;
}

/// Whether this is the one thread of its warpgroup that speaks for it.
template <class Machine>
TILEWISE_INLINE bool leads_warpgroup() {
  return Machine::thread() % kWarpgroupThreads == 0;
}

/// Stores a number in shared memory. One lane calls it.
template <class Machine>
TILEWISE_INLINE void store_number(typename Machine::SharedNumber& to, int32_t value) {
  Machine::store_shared(reinterpret_cast<int32_t*>(&to), value);
}

/// Has one lane arrive at a barrier once all lanes of the warp have come here.
template <class Machine>
TILEWISE_INLINE void arrive_as_warp(Barrier<Machine>& barrier) {
  Machine::wave_sync();
  if (Machine::thread() % 32 == 0) barrier.arrive();
}

/// Does the same at this barrier of all blocks of the cluster.
template <int kBlocks, class Machine>
TILEWISE_INLINE void arrive_as_warp_at_all(Barrier<Machine>& barrier) {
  Machine::wave_sync();
  const int32_t lane = Machine::thread() % 32;
  if (lane < kBlocks) barrier.arrive_at(lane);
}

/// Has one lane arrive likewise, where lanes have kept their number. To read it anew may take 50 to 150 cycles.
template <class Machine>
TILEWISE_INLINE void arrive_as_warp(Barrier<Machine>& barrier, int lane) {
  Machine::wave_sync();
  if (lane == 0) barrier.arrive();
}

/// Has each lane arrive once all lanes have come here; the barrier counts kWarpArrivals for a warp. It serves lanes
/// that leave numbers for other lanes' loads: compute-sanitizer's racecheck follows no arrival but a lane's own.
template <class Machine>
TILEWISE_INLINE void arrive_as_lanes(Barrier<Machine>& barrier) {
  Machine::wave_sync();
  barrier.arrive();
}

/// The compiler moves no use of these registers across it.
template <class Machine, class Fragment>
TILEWISE_INLINE void pin_registers(Fragment& fragment) {
  fragment.for_each(0, [](int, int, auto&& x) { Machine::pin(x); });
}

/// A lane holds columns 0, 1, 8, 9, 16, ... of an accumulator's row, counted from its first one. The bits of a word
/// stand for those of kWordColumns columns, in their order.
inline constexpr int kWordColumns = 128;
TILEWISE_INLINE constexpr int column_bit(int col) { return col / 8 * 2 + col % 8; }
/// Returns the bits of those that are below `col`.
template <int kColumns = kWordColumns>
TILEWISE_INLINE uint32_t column_bits_before(int32_t col) {
  static_assert(kColumns <= kWordColumns);
  const int32_t within = maximum(0, minimum(col, kColumns));
  const int32_t count = within / 8 * 2 + minimum(within % 8, 2);
  return static_cast<uint32_t>((uint64_t{1} << count) - 1);
}

/// Transposes words among four lanes: word[i] of lane j goes to word[j] of lane i. Lane numbers differ in their last
/// two bits.
template <class Machine>
TILEWISE_INLINE void transpose_quad(uint32_t (&word)[4]) {
  TILEWISE_UNROLL
  for (int bit = 1; bit <= 2; bit *= 2) {
    const bool upper = (Machine::lane() & bit) != 0;
    TILEWISE_UNROLL
    for (int i = 0; i < 4; ++i) {
      if (i & bit) continue;
      const uint32_t sent = upper ? word[i] : word[i | bit];
      const uint32_t received = Machine::shuffle_xor(sent, bit);
      (upper ? word[i] : word[i | bit]) = received;
    }
  }
}

/// Stores a warp's 16 rows, rounded, in a tile as TMA reads it. pair_of(eight columns, slot) is two columns of the
/// first or the second of the lane's rows, `place` the lane's, as the tile's place_of() gives it.
template <class Machine, int kColTiles, class Tile, class PairOf>
TILEWISE_INLINE void store_pairs(Tile& tile, int place, const PairOf& pair_of) {
  TILEWISE_UNROLL
  for (int k = 0; 2 * k < kColTiles; ++k) {
    uint32_t packed[4] = {};
    TILEWISE_UNROLL
    for (int i = 0; i < 4; ++i) {
      if (2 * k + i / 2 < kColTiles) packed[i] = pair_of(2 * k + i / 2, i % 2);
    }
    Machine::store_matrices(tile.pair_piece(place, k), packed);
  }
}

}  // namespace tilewise::device
