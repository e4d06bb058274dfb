// Hands blocks to threads, and reports the first that fails.
#include "backends/emulation/emulator.hpp"

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

/// One after another: they share counters, and threads would decide who draws which number.
Cluster::Fault run_clusters(const device::HostKernel& kernel, const Grid& grid, const void* params,
                            const GlobalMemory& memory, std::uint64_t seed) {
  Cluster::Fault fault;
  std::unique_ptr<Cluster> cluster;
  core::parallel_for(grid.blocks / grid.cluster, 1, [&](std::int64_t number, int) {
    if (!fault.text.empty()) return;
    if (!cluster) cluster = std::make_unique<Cluster>(kernel, grid.threads, grid.blocks, grid.cluster, memory);
    fault = cluster->run(static_cast<std::int32_t>(number) * grid.cluster, params, seed);
  });
  return fault;
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
