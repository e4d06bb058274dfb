// Counters by which blocks of a launch tell each other what is done, in memory that nobody has cleared: a launch that
// clears it would take 4 to 6 us of each call.
#pragma once

#include "device/tile/platform.h"

namespace tilewise::device {

/// All blocks of the launch arrive at the end, so that the last one closes the counters and no launch finds them open.
/// The memory is words(count) words, aligned to 8 bytes: a state, the blocks that have ended, and the counters.
template <class Machine>
class GridCounters {
  // Arbitrary memory looks like one of these states with a probability of 2^-63. Any other value means closed.
  static constexpr uint64_t kOpening = 0x5F20B7C4913EA86Du, kOpen = 0xB64D09F3E7C1582Au;
  static constexpr int32_t kEnded = 2, kFirst = 4;

 public:
  static constexpr int32_t words(int32_t count) { return kFirst + count; }

  TILEWISE_INLINE explicit GridCounters(uint32_t* memory) : memory_(memory) {}

  /// Sets `count` counters to 0, or waits until another block has. One thread of each block calls it, before any of the
  /// block touches them: all at once would wait for each other's exchanges.
  TILEWISE_INLINE void open(int32_t count) const {
    for (uint64_t expected = 0;;) {
      const uint64_t found = Machine::exchange_if(state(), expected, kOpening);
      if (found == kOpen) break;
      if (found == kOpening) {
        // Its upper half says enough, and to ask for it disturbs nobody.
        Machine::await_global(reinterpret_cast<uint32_t*>(state()) + 1, static_cast<uint32_t>(kOpen >> 32));
        break;
      }
      if (found == expected) {
        for (int32_t i = kEnded; i < words(count); ++i) Machine::store_global(memory_ + i, 0u);
        Machine::fence_global();
        Machine::exchange_if(state(), kOpening, kOpen);
        break;
      }
      expected = found;
    }
    Machine::fence_global();
  }

  /// What this thread has written, or has seen written, is seen by those that wait for the count.
  TILEWISE_INLINE void arrive(int32_t index) const { Machine::release_count(memory_ + kFirst + index); }
  /// All lanes of a warp wait until so many have arrived, which are all that ever will: one more would pass them by.
  /// TMA sees then what they have written.
  TILEWISE_INLINE void wait(int32_t index, int32_t count) const {
    Machine::await_global_together(memory_ + kFirst + index, static_cast<uint32_t>(count));
  }
  /// One thread of each block tells that its block has ended, and waits for all others.
  TILEWISE_INLINE void meet(int32_t blocks) const {
    Machine::fence_global();
    const bool last = Machine::count(memory_ + kEnded) + 1 == static_cast<uint32_t>(blocks);
    Machine::await_global(memory_ + kEnded, static_cast<uint32_t>(blocks));
    if (last) Machine::store_global(state(), uint64_t{0});
  }

 private:
  TILEWISE_INLINE uint64_t* state() const { return reinterpret_cast<uint64_t*>(memory_); }

  uint32_t* const memory_;
};

}  // namespace tilewise::device
