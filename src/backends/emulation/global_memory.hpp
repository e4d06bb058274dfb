// The memory outside shared memory that a launch may touch: its tensors and its workspace, element by
// element. Whatever else an emulated kernel reads or writes is an error.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "gpu/kernel.hpp"

namespace tilewise::backends::emulation {

/// A lane of the grid.
struct GlobalAccessor {
  std::int32_t block, thread, threads;  ///< threads of each block
};

using GlobalAccess = gpu::Access;

class GlobalMemory {
 public:
  /// Null data is no region. Of one with one_writer each word may be written by one lane, and read by the blocks of
  /// others only if nobody writes it: blocks of a launch come in no order.
  void add(const gpu::Region& region, const void* data);

  /// Empty, or what is wrong with an access: "reads 16 bytes ... past the end of k".
  [[nodiscard]] std::string check(const void* address, std::size_t bytes, bool write) const;
  /// The same of one lane. Thread-safe.
  [[nodiscard]] std::string access(const void* address, std::size_t bytes, GlobalAccess what,
                                   const GlobalAccessor& who) const;

 private:
  struct Region {
    std::string name;
    std::uintptr_t begin = 0, end = 0;
    std::vector<gpu::Dimension> outer;  ///< in bytes, widest stride first; empty: every byte between begin and end
    std::size_t row_bytes = 0;
    bool writable = false;
    std::size_t cell = 1;                                   ///< bytes that have one writer: an element's, two at most
    std::shared_ptr<std::atomic<std::uint32_t>[]> writers;  ///< of each cell: 1 + the lane, 0: nobody

    [[nodiscard]] bool holds(std::uintptr_t address, std::size_t bytes) const;
  };
  static void track_writers(Region& region);
  [[nodiscard]] const Region* find(std::uintptr_t address, std::size_t bytes, bool write) const;
  [[nodiscard]] std::string fault(std::uintptr_t address, std::size_t bytes, bool write) const;

  std::vector<Region> regions_;
};

/// Everything that a kernel's parameter block points to, by the kernel's table of pointers.
[[nodiscard]] GlobalMemory memory_of(const gpu::KernelBody& kernel, const void* params);

}  // namespace tilewise::backends::emulation
