// Runs the grid of an emulated kernel: blocks side by side on the CPU's threads, lanes of a block one
// after another. The seed, the blocks and the parameters alone decide what happens.
#pragma once

#include <cstdint>
#include <string_view>

#include "backends/emulation/global_memory.hpp"
#include "device/tile/host_entry.h"

namespace tilewise::backends::emulation {

struct Grid {
  std::string_view name;  ///< of machine and kernel, for messages
  std::int32_t blocks = 0, threads = 0;
  std::int32_t cluster = 1;  ///< blocks that run side by side
  std::int32_t at_once = 1;  ///< blocks that the machine has room for: a grid of no more may wait for any of its own
};

/// `params` points at the kernel's parameter block. Throws Error (runtime) that names kernel, block, wave and lane, and
/// what the lane did wrong; of several blocks that fail, the first.
void run_grid(const device::HostKernel& kernel, const Grid& grid, const void* params, const GlobalMemory& memory,
              std::uint64_t seed);

/// TILEWISE_EMULATION_SEED, 0 where it is not set. Throws Error (invalid_argument) where it is no number.
[[nodiscard]] std::uint64_t seed_from_environment();

}  // namespace tilewise::backends::emulation
