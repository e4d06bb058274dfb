// Faults that two blocks make possible which load tiles of keys for both, planted in a kernel that has such clusters.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "device/sm90/machine_host.h"
#include "device/sm90/warpgroup.h"

namespace tilewise::test {

enum class ClusterFault {
  none,
  begun_alone,
  ended_alone,
  refilled_by_own_readers,
  hand_back_lost,
  copy_misses_peer,
};

/// kReaders: warps of a block that hand a stage back; those behind the first warpgroup do.
template <int kThreads, int kReaders>
struct FaultyClusterSm90 : device::HostSm90Machine {
  inline static ClusterFault fault = ClusterFault::none;
  inline static std::array<std::int32_t, 2 * kThreads> barriers_met{};  ///< by each lane: arrivals and waits

  static void begin_run(ClusterFault of_run) {
    fault = of_run;
    barriers_met.fill(0);
  }

  static void init_barrier(uint64_t* barrier, int32_t arrivals) {
    const bool halves = fault == ClusterFault::refilled_by_own_readers && arrivals == 2 * kReaders;
    HostSm90Machine::init_barrier(barrier, halves ? kReaders : arrivals);
  }
  static void arrive_at(uint64_t* barrier, int32_t rank) {
    const bool first_warp = thread() / 32 == device::kWarpgroupThreads / 32;
    if (fault == ClusterFault::hand_back_lost && rank != rank_in_cluster() && first_warp) return;
    HostSm90Machine::arrive_at(barrier, rank);
  }
  static void arrive_at_cluster() {
    if (!passes_cluster()) HostSm90Machine::arrive_at_cluster();
  }
  static void wait_for_cluster() {
    if (!passes_cluster()) return HostSm90Machine::wait_for_cluster();
    if (fault == ClusterFault::begun_alone) barrier();  // what each block had without the other
  }
  template <class... X>
  static void copy_box_to_blocks(uint32_t blocks, void* to, const device::TensorMap& map, uint64_t* landed,
                                 const X&... x) {
    if (fault == ClusterFault::copy_misses_peer) blocks = 1u << rank_in_cluster();
    HostSm90Machine::copy_box_to_blocks(blocks, to, map, landed, x...);
  }

 private:
  /// Whether this lane leaves out a barrier of its cluster: the first one, or the second.
  static bool passes_cluster() {
    std::int32_t& met = barriers_met[static_cast<std::size_t>(rank_in_cluster() * kThreads + thread())];
    const bool first = met++ / 2 == 0;
    return fault == (first ? ClusterFault::begun_alone : ClusterFault::ended_alone);
  }
};

}  // namespace tilewise::test
