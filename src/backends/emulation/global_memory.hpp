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

#include "device/common/kernel_config.h"

namespace tilewise::backends::emulation {

/// A dimension in memory. A broadcast one has stride 0.
struct Dimension {
  std::int64_t extent, stride;  // stride in elements
};

/// A lane of the grid.
struct GlobalAccessor {
  std::int32_t block, thread, threads;  ///< threads of each block
};

/// Lanes of any blocks may add to one place in a launch, if nobody reads or stores to it.
enum class GlobalAccess : std::uint8_t { read, write, add };

class GlobalMemory {
 public:
  /// Dimensions outside the innermost one, which is `row` adjacent elements. Null data is no region.
  void add(std::string_view name, const void* data, std::size_t element_bytes, std::vector<Dimension> outer,
           std::int64_t row, bool writable);

  /// From here on every word may be written by one lane, and read by the blocks of others only if nobody writes it:
  /// blocks of a launch come in no order.
  void track_writers();

  /// Empty, or what is wrong with an access: "reads 16 bytes ... past the end of k".
  [[nodiscard]] std::string check(const void* address, std::size_t bytes, bool write) const;
  /// The same of one lane. Thread-safe.
  [[nodiscard]] std::string access(const void* address, std::size_t bytes, GlobalAccess what,
                                   const GlobalAccessor& who) const;

 private:
  struct Region {
    std::string name;
    std::uintptr_t begin = 0, end = 0;
    std::vector<Dimension> outer;  ///< in bytes, widest stride first; empty: every byte between begin and end
    std::size_t row_bytes = 0;
    bool writable = false;
    std::shared_ptr<std::atomic<std::uint32_t>[]> writers;  ///< of each two bytes: 1 + the lane, 0: nobody

    [[nodiscard]] bool holds(std::uintptr_t address, std::size_t bytes) const;
  };
  [[nodiscard]] const Region* find(std::uintptr_t address, std::size_t bytes, bool write) const;
  [[nodiscard]] std::string fault(std::uintptr_t address, std::size_t bytes, bool write) const;

  std::vector<Region> regions_;
};

/// Everything that the parameters of a portable kernel point to.
[[nodiscard]] GlobalMemory memory_of(const device::KernelParams& params);

}  // namespace tilewise::backends::emulation
