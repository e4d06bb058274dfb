// Barriers in shared memory that count arrivals and bytes on their way (mbarrier), and places in the rings that they
// guard.
#pragma once

#include "device/tile/platform.h"

namespace tilewise::device {

inline constexpr int32_t kWarpArrivals = 32;  // where each lane of a warp arrives

/// A phase ends once all arrivals have come and all expected bytes have landed. The next one begins at once.
template <class Machine>
class Barrier {
 public:
  TILEWISE_INLINE void init(int32_t arrivals) { Machine::init_barrier(&state_, arrivals); }
  TILEWISE_INLINE void arrive() { Machine::arrive(&state_); }
  /// Arrives at the same barrier of another block of the cluster.
  TILEWISE_INLINE void arrive_at(int32_t rank) { Machine::arrive_at(&state_, rank); }
  /// Arrives, and has the phase wait for that many bytes more.
  TILEWISE_INLINE void arrive_and_expect(int32_t bytes) { Machine::arrive_and_expect(&state_, bytes); }
  /// Arrives once this lane's copies have landed.
  TILEWISE_INLINE void arrive_after_copies() { Machine::arrive_after_copies(&state_); }
  /// Waits until the phase of this parity has ended. The phase before the first one counts as ended, and as odd.
  TILEWISE_INLINE void wait(uint32_t parity) { Machine::wait(&state_, parity); }
  /// Returns whether it has ended. Where it has, no further wait is needed.
  TILEWISE_INLINE bool test(uint32_t parity) { return Machine::test(&state_, parity); }
  /// The word in which TMA counts bytes.
  TILEWISE_INLINE uint64_t* state() { return &state_; }

 private:
  uint64_t state_;
};

/// A ring of stages between threads that fill them and threads that empty them.
template <class Machine, int kStages_>
struct Ring {
  static constexpr int kStages = kStages_;
  Barrier<Machine> full[kStages], empty[kStages];

  TILEWISE_INLINE void init(int32_t full_arrivals, int32_t empty_arrivals) {
    TILEWISE_UNROLL
    for (int i = 0; i < kStages; ++i) full[i].init(full_arrivals), empty[i].init(empty_arrivals);
  }
};

/// A thread's place in a ring.
template <int kStages>
struct RingPlace {
  uint32_t stage = 0, parity = 0;

  TILEWISE_INLINE void advance() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
  /// The place before the last advance.
  TILEWISE_INLINE RingPlace before() const {
    return stage == 0 ? RingPlace{kStages - 1, parity ^ 1} : RingPlace{stage - 1, parity};
  }
  template <class Machine>
  TILEWISE_INLINE void wait_full(Ring<Machine, kStages>& ring) const {
    ring.full[stage].wait(parity);
  }
  template <class Machine>
  TILEWISE_INLINE bool test_full(Ring<Machine, kStages>& ring) const {
    return ring.full[stage].test(parity);
  }
  template <class Machine>
  TILEWISE_INLINE bool test_empty(Ring<Machine, kStages>& ring) const {
    return ring.empty[stage].test(parity ^ 1);
  }
  template <class Machine>
  TILEWISE_INLINE void wait_empty(Ring<Machine, kStages>& ring) const {
    ring.empty[stage].wait(parity ^ 1);
  }
};

/// The place after that many advances.
template <int kStages>
TILEWISE_INLINE RingPlace<kStages> ring_place(uint32_t count) {
  return {count % kStages, count / kStages % 2};
}

}  // namespace tilewise::device
