// Numbers tiles for all blocks of a launch, in memory that nobody has cleared: a launch that clears it would take 4 to
// 6 us of each call.
#pragma once

#include "device/tile/platform.h"

namespace tilewise::device {

inline constexpr int32_t kCounterWords = 4;  // of a TileCounter

/// One thread of each block counts. The memory is kCounterWords words, aligned to 8 bytes: a state and the next number.
/// The first block that comes opens the counter, and whoever gets the last number closes it, so that no launch finds it
/// open.
template <class Machine>
class TileCounter {
  // Arbitrary memory looks like one of these states with a probability of 2^-63. Any other value means closed.
  static constexpr uint64_t kOpening = 0x9B1D5C27E84F6A31u, kOpen = 0x4E6AF3D18B52C097u;

 public:
  TILEWISE_INLINE explicit TileCounter(uint32_t* words) : words_(words) {}

  /// Returns 0, 1, 2, ... over all blocks. Nothing here waits for the answer.
  TILEWISE_INLINE int32_t next() {
    if (!known_open_) open();
    return static_cast<int32_t>(Machine::count(words_ + 2));
  }
  /// Is called by whoever got the last number.
  TILEWISE_INLINE void close() const { Machine::store_global(state(), uint64_t{0}); }

 private:
  TILEWISE_INLINE uint64_t* state() const { return reinterpret_cast<uint64_t*>(words_); }

  TILEWISE_INLINE void open() {
    known_open_ = true;
    for (uint64_t expected = 0;;) {
      const uint64_t found = Machine::exchange_if(state(), expected, kOpening);
      if (found == kOpen) break;
      if (found == kOpening) continue;
      if (found == expected) {
        Machine::store_global(words_ + 2, 0u);
        Machine::fence_global();
        Machine::exchange_if(state(), kOpening, kOpen);
        break;
      }
      expected = found;
    }
    Machine::fence_global();
  }

  uint32_t* words_;
  bool known_open_ = false;
};

}  // namespace tilewise::device
