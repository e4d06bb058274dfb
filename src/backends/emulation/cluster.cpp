// Which block's lanes run next, and what became of a cluster.
#include "backends/emulation/cluster.hpp"

#include <algorithm>

#include "backends/emulation/warpgroup_emulator.hpp"
#include "core/message.hpp"

namespace tilewise::backends::emulation {

Cluster::Cluster(const device::HostKernel& kernel, std::int32_t threads, std::int32_t grid_blocks, std::int32_t blocks,
                 const GlobalMemory& memory)
    : kernel_(kernel) {
  for (std::int32_t rank = 0; rank < blocks; ++rank) {
    const Actors actors{static_cast<std::size_t>(threads), static_cast<std::size_t>(rank),
                        static_cast<std::size_t>(blocks)};
    members_.push_back(std::make_unique<WarpgroupEmulator>(kernel, actors, grid_blocks, memory, *this));
  }
}

Cluster::~Cluster() = default;

void Cluster::begin(std::int32_t first_block, const void* params, std::uint64_t seed) {
  const Actors& actors = members_.front()->knowledge_.actors();
  barrier_ = ClusterBarrier{};
  barrier_.pending.reset(actors.of_cluster());
  barrier_.done.reset(actors.of_cluster());
  barrier_.arrivals.assign(actors.lanes * actors.blocks, 0);
  barrier_.waits = barrier_.arrivals;
  for (std::int32_t rank = 0; rank < size(); ++rank) member(rank).start(first_block + rank, params, seed);
}

Cluster::Fault Cluster::go_on() {
  kernel_.enter(*members_.front());
  main_.switch_to(members_.front()->next_fiber());
  for (const auto& member : members_) {
    if (!member->fault_.empty()) return {member->block, member->fault_};
  }
  return waits() ? Fault{} : stand_still();
}

bool Cluster::waits() const {
  return std::ranges::any_of(members_, [](const auto& member) { return !member->wait_for_words_.empty(); });
}

bool Cluster::can_go_on() {
  kernel_.enter(*members_.front());
  return next_block() != nullptr;
}

Cluster::Fault Cluster::stand_still() const {
  Fault still;
  for (const auto& member : members_) {
    const std::string text = member->verdict();
    if (text.empty()) continue;
    if (still.text.empty()) {
      still = {member->block, text};
    } else {
      core::append(still.text, core::concat("; block ", member->block, ", ", text));
    }
  }
  return still;
}

BlockEmulator* Cluster::next_block() {
  while (std::ranges::all_of(members_, [](const auto& member) { return member->fault_.empty(); })) {
    std::size_t runnable = 0;
    for (const auto& member : members_) runnable += member->runnable_.size();
    if (runnable == 0) {
      const auto goes_on = [](const auto& member) { return member->go_on_alone(); };
      if (std::ranges::none_of(members_, goes_on)) return nullptr;
      continue;
    }
    if (members_.size() == 1) return members_.front().get();
    std::size_t chosen = members_.front()->random(static_cast<std::uint32_t>(runnable));
    for (const auto& member : members_) {
      if (chosen < member->runnable_.size()) {
        kernel_.enter(*member);
        return member.get();
      }
      chosen -= member->runnable_.size();
    }
  }
  return nullptr;
}

}  // namespace tilewise::backends::emulation
