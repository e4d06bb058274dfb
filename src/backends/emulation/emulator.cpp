// Hands blocks to threads, and reports the first that fails.
#include "backends/emulation/emulator.hpp"

#include <charconv>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backends/emulation/block_emulator.hpp"
#include "backends/emulation/warpgroup_emulator.hpp"
#include "core/message.hpp"
#include "core/parallel.hpp"

namespace tilewise::backends::emulation {

void run_grid(const device::HostKernel& kernel, const Grid& grid, const void* params, const GlobalMemory& memory,
              std::uint64_t seed) {
  if (grid.threads <= 0 || grid.threads % kernel.lanes != 0) {
    throw Error(ErrorCode::runtime, core::concat(grid.name, ": threads must be whole waves of ", kernel.lanes, " (got ",
                                                 grid.threads, ")"));
  }
  // Blocks with warpgroups share counters: one after another, lest the threads decide who draws which number.
  const int workers = kernel.warpgroups ? 1 : core::num_threads();
  std::vector<std::unique_ptr<BlockEmulator>> emulators(static_cast<std::size_t>(workers));
  std::mutex mutex;
  std::int64_t failed = grid.blocks;
  std::string fault;
  core::parallel_for(grid.blocks, workers, [&](std::int64_t block, int worker) {
    {
      const std::lock_guard<std::mutex> guard(mutex);
      if (block > failed) return;
    }
    auto& emulator = emulators[static_cast<std::size_t>(worker)];
    if (!emulator && kernel.warpgroups) {
      emulator = std::make_unique<WarpgroupEmulator>(kernel, grid.threads, grid.blocks, memory);
    } else if (!emulator) {
      emulator = std::make_unique<BlockEmulator>(kernel, grid.threads, memory);
    }
    std::string found = emulator->run(static_cast<std::int32_t>(block), params, seed);
    if (found.empty()) return;
    const std::lock_guard<std::mutex> guard(mutex);
    if (block < failed) failed = block, fault = std::move(found);
  });
  if (failed < grid.blocks) {
    throw Error(ErrorCode::runtime,
                core::concat(grid.name, ": block ", failed, ", ", fault, " (TILEWISE_EMULATION_SEED=", seed, ")"));
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
