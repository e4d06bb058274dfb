// The tensor memory accelerator: boxes of a tensor move between global and shared memory by one thread's instruction.
// What lies outside the tensor reads as zeros and is not written.
#pragma once

#include "device/hopper/mbarrier.h"
#include "device/hopper/tensor_map.h"

namespace tilewise::device {

/// Brings a box of a [dim, seq, head, batch] tensor; its bytes count on `landed`.
TILEWISE_INLINE void tma_load(void* to, const TensorMap& map, Barrier& landed, int32_t dim, int32_t seq, int32_t head,
                              int32_t batch) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
      "[%2];" ::"r"(shared_address(to)),
      "l"(&map), "r"(landed.address()), "r"(dim), "r"(seq), "r"(head), "r"(batch)
      : "memory");
}

/// The same of a [dim, head of the group, seq, group, batch] tensor.
TILEWISE_INLINE void tma_load(void* to, const TensorMap& map, Barrier& landed, int32_t dim, int32_t of_group,
                              int32_t seq, int32_t group, int32_t batch) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
      "[%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(shared_address(to)),
      "l"(&map), "r"(landed.address()), "r"(dim), "r"(of_group), "r"(seq), "r"(group), "r"(batch)
      : "memory");
}

/// Calls such a box into the L2 cache.
TILEWISE_INLINE void tma_prefetch(const TensorMap& map, int32_t dim, int32_t of_group, int32_t seq, int32_t group,
                                  int32_t batch) {
  asm volatile("cp.async.bulk.prefetch.tensor.5d.L2.global [%0, {%1, %2, %3, %4, %5}];" ::"l"(&map), "r"(dim),
               "r"(of_group), "r"(seq), "r"(group), "r"(batch)
               : "memory");
}

/// Takes a box to such a tensor. The shared memory was written before fence_shared_writes() and a barrier.
TILEWISE_INLINE void tma_store(const TensorMap& map, const void* from, int32_t dim, int32_t of_group, int32_t seq,
                               int32_t group, int32_t batch) {
  asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5, %6}], [%1];" ::"l"(&map),
               "r"(shared_address(from)), "r"(dim), "r"(of_group), "r"(seq), "r"(group), "r"(batch)
               : "memory");
}
TILEWISE_INLINE void tma_commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
/// Until this thread's stores have read shared memory.
TILEWISE_INLINE void tma_wait_stores_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
/// Until they have been written.
TILEWISE_INLINE void tma_wait_stores() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

TILEWISE_INLINE void tma_prefetch(const TensorMap& map) { asm volatile("prefetch.tensormap [%0];" ::"l"(&map)); }

/// Lets the copy engine and the matrix unit see what this thread has written to shared memory, and waits for nothing.
TILEWISE_INLINE void fence_shared_writes() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

}  // namespace tilewise::device
