// Pipelines: stages of shared memory between a warp that has them loaded and warps that use them. In a cluster whose
// blocks load for each other, the stages of all its blocks are filled and handed back together.
#pragma once

#include "device/sm90/warpgroup.h"

namespace tilewise::device {

template <class Machine_, int kStages_, int kBlocks_ = 1>
struct Pipeline {
  using Machine = Machine_;
  static constexpr int kStages = kStages_, kBlocks = kBlocks_;
  Ring<Machine, kStages> ring;

  /// consumer_warps counts those of each block. Each producer announces a stage's bytes once; there is one unless told
  /// otherwise.
  TILEWISE_INLINE void init(int32_t consumer_warps, int32_t producers = 1) {
    ring.init(producers, consumer_warps * kBlocks);
  }
};

/// The producer's place. A producer is one thread of a block, or a warp whose first lane speaks for it.
template <class Pipe>
class ProducerPlace {
  using Machine = typename Pipe::Machine;

 public:
  TILEWISE_INLINE explicit ProducerPlace(Pipe& pipe) : ring_(pipe.ring) {}

  TILEWISE_INLINE uint32_t stage() const { return place_.stage; }
  /// Waits until the stage is empty, in all blocks of the cluster.
  TILEWISE_INLINE void wait() const { place_.wait_empty(ring_); }
  /// Waits likewise, and announces the bytes that will land in this block's stage. Returns the barrier that counts
  /// them.
  TILEWISE_INLINE Barrier<Machine>& begin(int32_t bytes) const {
    wait();
    full().arrive_and_expect(bytes);
    return full();
  }
  TILEWISE_INLINE Barrier<Machine>& full() const { return ring_.full[place_.stage]; }
  TILEWISE_INLINE void advance() { place_.advance(); }

 private:
  Ring<Machine, Pipe::kStages>& ring_;
  RingPlace<Pipe::kStages> place_;
};

/// A consumer warp's place. Its lanes wait and release together.
template <class Pipe>
class ConsumerPlace {
  using Machine = typename Pipe::Machine;

 public:
  TILEWISE_INLINE explicit ConsumerPlace(Pipe& pipe) : ring_(pipe.ring) {}

  TILEWISE_INLINE uint32_t stage() const { return place_.stage; }
  TILEWISE_INLINE void wait() const { place_.wait_full(ring_); }
  /// Hands this stage back, or the one that many stages before it.
  TILEWISE_INLINE void release() const { release(place_); }
  template <int kBack = 1>
  TILEWISE_INLINE void release_before() const {
    static_assert(kBack == 1 || kBack == 2);
    release(kBack == 1 ? place_.before() : place_.before().before());
  }
  TILEWISE_INLINE void advance() { place_.advance(); }

 private:
  TILEWISE_INLINE void release(const RingPlace<Pipe::kStages>& place) const {
    Barrier<Machine>& empty = ring_.empty[place.stage];
    if constexpr (Pipe::kBlocks == 1) {
      arrive_as_warp(empty);
    } else {
      arrive_as_warp_at_all<Pipe::kBlocks>(empty);
    }
  }

  Ring<Machine, Pipe::kStages>& ring_;
  RingPlace<Pipe::kStages> place_;
};

}  // namespace tilewise::device
