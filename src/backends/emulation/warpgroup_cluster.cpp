// What a Hopper block does to others of its cluster: arrivals at their barriers, copies to their shared memory, and the
// barrier of all. Each must be known to a block before it ends, else it might have come later, to nobody's memory.
#include <algorithm>

#include "backends/emulation/cluster.hpp"
#include "backends/emulation/lane_fault.hpp"
#include "backends/emulation/warpgroup_emulator.hpp"

namespace tilewise::backends::emulation {

using core::concat;

WarpgroupEmulator& WarpgroupEmulator::peer(std::int32_t rank, const char* does) {
  if (rank < 0 || rank >= cluster_.size()) fail(does, " block ", rank, " of its cluster, which has ", cluster_.size());
  WarpgroupEmulator& other = cluster_.member(rank);
  if (other.ended_ == static_cast<std::int32_t>(lanes_.size())) {
    fail(does, " block ", rank, " of its cluster, which has ended");
  }
  return other;
}

void WarpgroupEmulator::arrive_at(void* address, std::int32_t rank) {
  if (rank == rank_in_cluster) return arrive(address, 0);
  let_time_pass();
  WarpgroupEmulator& other = peer(rank, "arrives at a barrier of");
  MemoryBarrier& barrier = other.barrier_at(memory_of_block_.offset_of(address), *this);
  if (const std::string fault = barrier.arrive(0); !fault.empty()) fail("in block ", rank, " of its cluster ", fault);
  knowledge_.tell(own_lane(), barrier.pending);
  const std::size_t actor = knowledge_.actors().lane(own_lane());
  other.peers_arrivals_[lane_of_cluster()] = {actor, knowledge_.of(own_lane()).seen[actor], &barrier};
  other.advance(barrier);
}

void WarpgroupEmulator::arrive_at_cluster() {
  let_time_pass();
  ClusterBarrier& barrier = cluster_.barrier();
  std::int32_t& arrivals = barrier.arrivals[lane_of_cluster()];
  if (arrivals > barrier.waits[lane_of_cluster()]) fail("arrives at the cluster's barrier twice without a wait");
  ++arrivals;
  knowledge_.tell(own_lane(), barrier.pending);
  if (++barrier.arrived < barrier.arrivals.size()) return;
  barrier.arrived = 0;
  ++barrier.phase;
  barrier.done.learn(barrier.pending);
  for (std::int32_t rank = 0; rank < cluster_.size(); ++rank) {
    WarpgroupEmulator& other = cluster_.member(rank);
    other.wake(other.wait_for_cluster_);
  }
}

void WarpgroupEmulator::wait_for_cluster() {
  let_time_pass();
  ClusterBarrier& barrier = cluster_.barrier();
  std::int32_t& waits = barrier.waits[lane_of_cluster()];
  if (waits == barrier.arrivals[lane_of_cluster()]) fail("waits at the cluster's barrier before it arrives there");
  while (barrier.phase <= waits) {
    wait_for_cluster_.push_back(thread);
    yield();
  }
  ++waits;
  knowledge_.of(own_lane()).learn(barrier.done);
}

void WarpgroupEmulator::check_peers() {
  const auto is_known = [this](std::size_t actor, Time when) {
    for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
      if (knowledge_.of(lane).seen[actor] >= when) return true;
    }
    return false;
  };
  for (const PeerEvent& event : peers_arrivals_) {
    if (event.barrier == nullptr || is_known(event.actor, event.when)) continue;
    fail("ends the block, none of whose lanes knows that block ", event.actor / knowledge_.actors().count(),
         " of the cluster has arrived at ", event.barrier->name());
  }
  for (const PeerEvent& event : peers_copies_) {
    if (is_known(event.actor, event.when)) continue;
    fail("ends the block, none of whose lanes has waited for a copy by another block of the cluster that counts on ",
         event.barrier->name());
  }
}

}  // namespace tilewise::backends::emulation
