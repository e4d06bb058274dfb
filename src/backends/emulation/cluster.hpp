// Blocks of a Hopper machine that run side by side (a cluster; a block alone is one of its own): their lanes take
// turns, drawn from one seed, so that what one block tells or sends another comes at any moment.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backends/emulation/barriers.hpp"
#include "backends/emulation/fiber.hpp"
#include "backends/emulation/global_memory.hpp"
#include "device/tile/host_entry.h"

namespace tilewise::backends::emulation {

class BlockEmulator;
class WarpgroupEmulator;

class Cluster {
 public:
  /// `blocks`: of a cluster.
  Cluster(const device::HostKernel& kernel, std::int32_t threads, std::int32_t grid_blocks, std::int32_t blocks,
          const GlobalMemory& memory);
  ~Cluster();
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  struct Fault {
    std::int32_t block = 0;
    std::string text;  ///< empty where nothing went wrong
  };
  /// Lanes of the blocks from `first_block` on stand at the kernel's beginning.
  void begin(std::int32_t first_block, const void* params, std::uint64_t seed);
  /// Runs every lane to its end, or until what is left waits for what blocks of other clusters leave in memory.
  [[nodiscard]] Fault go_on();
  /// Whether it does.
  [[nodiscard]] bool waits() const;
  /// Whether what it waits for has come.
  [[nodiscard]] bool can_go_on();
  /// Why its lanes wait, as a fault.
  [[nodiscard]] Fault stand_still() const;

  // For its members.
  [[nodiscard]] std::int32_t size() const noexcept { return static_cast<std::int32_t>(members_.size()); }
  [[nodiscard]] WarpgroupEmulator& member(std::int32_t rank) { return *members_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] ClusterBarrier& barrier() noexcept { return barrier_; }
  [[nodiscard]] Fiber& main() noexcept { return main_; }
  /// One with a lane that can run, or null.
  [[nodiscard]] BlockEmulator* next_block();

 private:
  const device::HostKernel& kernel_;
  std::vector<std::unique_ptr<WarpgroupEmulator>> members_;
  ClusterBarrier barrier_;
  Fiber main_;
};

}  // namespace tilewise::backends::emulation
