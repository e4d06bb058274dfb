// Barriers in shared memory that count arrivals and bytes on their way (mbarrier), and places in the rings that they
// guard.
#pragma once

#include "device/tile/platform.h"

namespace tilewise::device {

TILEWISE_INLINE uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

/// A phase ends once all arrivals have come and all expected bytes have landed; the next begins at once.
class Barrier {
 public:
  TILEWISE_INLINE void init(int32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address()), "r"(arrivals) : "memory");
  }
  TILEWISE_INLINE void arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address()) : "memory");
  }
  /// Arrives, and has the phase wait for so many bytes more.
  TILEWISE_INLINE void arrive_and_expect(int32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address()), "r"(bytes) : "memory");
  }
  /// Until the phase of this parity has ended. The phase before the first one counts as ended, and as odd.
  TILEWISE_INLINE void wait(uint32_t parity) {
    asm volatile(
        "{ .reg .pred p;\n"
        "WAIT_%=: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
        "@!p bra WAIT_%=; }" ::"r"(address()),
        "r"(parity)
        : "memory");
  }
  TILEWISE_INLINE uint32_t address() const { return shared_address(this); }

 private:
  uint64_t state_;
};

/// Makes initialised barriers known to the copy engine. By the thread that has initialised them, before a barrier of
/// the block.
TILEWISE_INLINE void publish_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

/// A ring of stages between threads that fill them and threads that empty them.
template <int kStages_>
struct Ring {
  static constexpr int kStages = kStages_;
  Barrier full[kStages], empty[kStages];

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
  TILEWISE_INLINE void wait_full(Ring<kStages>& ring) const { ring.full[stage].wait(parity); }
  TILEWISE_INLINE void wait_empty(Ring<kStages>& ring) const { ring.empty[stage].wait(parity ^ 1); }
};

}  // namespace tilewise::device
