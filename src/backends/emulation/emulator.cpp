// Hands blocks to threads, and reports the first that fails.
#include "backends/emulation/emulator.hpp"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backends/emulation/block_emulator.hpp"
#include "backends/emulation/cluster.hpp"
#include "core/message.hpp"
#include "core/parallel.hpp"

namespace tilewise::backends::emulation {

namespace {

/// Clusters of a grid. One runs after another, since they share counters, and threads would decide who draws which
/// number; one that waits for what others leave in memory goes on once they have.
class Clusters {
 public:
  Clusters(const device::HostKernel& kernel, const Grid& grid, const GlobalMemory& memory)
      : kernel_(kernel), grid_(grid), memory_(memory) {}

  /// The fault is empty where nothing went wrong so far.
  Cluster::Fault run(std::int64_t number, const void* params, std::uint64_t seed) {
    std::unique_ptr<Cluster> cluster = free_one();
    cluster->begin(static_cast<std::int32_t>(number) * grid_.cluster, params, seed);
    Cluster::Fault fault = cluster->go_on();
    if (fault.text.empty() && cluster->waits() && grid_.blocks > grid_.at_once) fault = cluster->stand_still();
    (cluster->waits() ? waiting_ : idle_).push_back(std::move(cluster));
    return fault.text.empty() ? go_on() : fault;
  }
  /// Once all have begun.
  [[nodiscard]] Cluster::Fault stand_still() const {
    return waiting_.empty() ? Cluster::Fault{} : waiting_.front()->stand_still();
  }

 private:
  std::unique_ptr<Cluster> free_one() {
    if (idle_.empty()) return std::make_unique<Cluster>(kernel_, grid_.threads, grid_.blocks, grid_.cluster, memory_);
    std::unique_ptr<Cluster> cluster = std::move(idle_.back());
    idle_.pop_back();
    return cluster;
  }
  /// Those that can, the first ones first.
  Cluster::Fault go_on() {
    for (;;) {
      const auto able = std::ranges::find_if(waiting_, [](const auto& cluster) { return cluster->can_go_on(); });
      if (able == waiting_.end()) return {};
      if (Cluster::Fault fault = (*able)->go_on(); !fault.text.empty()) return fault;
      if ((*able)->waits()) continue;
      idle_.push_back(std::move(*able));
      waiting_.erase(able);
    }
  }

  const device::HostKernel& kernel_;
  const Grid& grid_;
  const GlobalMemory& memory_;
  std::vector<std::unique_ptr<Cluster>> waiting_, idle_;
};

Cluster::Fault run_clusters(const device::HostKernel& kernel, const Grid& grid, const void* params,
                            const GlobalMemory& memory, std::uint64_t seed) {
  Cluster::Fault fault;
  Clusters clusters(kernel, grid, memory);
  core::parallel_for(grid.blocks / grid.cluster, 1, [&](std::int64_t number, int) {
    if (fault.text.empty()) fault = clusters.run(number, params, seed);
  });
  return fault.text.empty() && !core::abandoned() ? clusters.stand_still() : fault;
}

/// Of several faults, the first block's.
Cluster::Fault run_blocks(const device::HostKernel& kernel, const Grid& grid, const void* params,
                          const GlobalMemory& memory, std::uint64_t seed) {
  const int workers = core::num_threads();
  std::vector<std::unique_ptr<BlockEmulator>> emulators(static_cast<std::size_t>(workers));
  std::mutex mutex;
  Cluster::Fault fault{grid.blocks, {}};
  core::parallel_for(grid.blocks, workers, [&](std::int64_t number, int worker) {
    const auto block = static_cast<std::int32_t>(number);
    {
      const std::lock_guard<std::mutex> guard(mutex);
      if (block > fault.block) return;
    }
    auto& emulator = emulators[static_cast<std::size_t>(worker)];
    if (!emulator) emulator = std::make_unique<BlockEmulator>(kernel, grid.threads, memory);
    std::string found = emulator->run(block, params, seed);
    if (found.empty()) return;
    const std::lock_guard<std::mutex> guard(mutex);
    if (block < fault.block) fault = {block, std::move(found)};
  });
  return fault;
}

}  // namespace

void run_grid(const device::HostKernel& kernel, const Grid& grid, const void* params, const GlobalMemory& memory,
              std::uint64_t seed) {
  if (grid.threads <= 0 || grid.threads % kernel.lanes != 0) {
    throw Error(ErrorCode::runtime, core::concat(grid.name, ": threads must be whole waves of ", kernel.lanes, " (got ",
                                                 grid.threads, ")"));
  }
  if (grid.cluster < 1 || grid.blocks % grid.cluster != 0 || (grid.cluster > 1 && !kernel.warpgroups)) {
    throw Error(ErrorCode::runtime, core::concat(grid.name, ": ", grid.blocks, " blocks must be whole clusters of ",
                                                 grid.cluster, " on a machine that has them"));
  }
  const Cluster::Fault fault = kernel.warpgroups ? run_clusters(kernel, grid, params, memory, seed)
                                                 : run_blocks(kernel, grid, params, memory, seed);
  if (!fault.text.empty()) {
    throw Error(ErrorCode::runtime, core::concat(grid.name, ": block ", fault.block, ", ", fault.text,
                                                 " (TILEWISE_EMULATION_SEED=", seed, ")"));
  }
}

std::uint64_t seed_from_environment() {
  const char* text = std::getenv("TILEWISE_EMULATION_SEED");
  if (text == nullptr || *text == '\0') return 0;
  const std::string_view view(text);
  std::uint64_t seed = 0;
  const auto [end, error] = std::from_chars(view.data(), view.data() + view.size(), seed);
  if (error != std::errc{} || end != view.data() + view.size()) {
    core::invalid_argument("TILEWISE_EMULATION_SEED: must be a number from 0 to 2^64 - 1 (got ", core::quoted(view),
                           ")");
  }
  return seed;
}

}  // namespace tilewise::backends::emulation
