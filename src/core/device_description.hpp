// What a device is, as far as judging a problem and choosing its schedule goes.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "tilewise/tensor.hpp"

namespace tilewise::core {

/// A plain value: of a device that is here, or of one that tests and ahead-of-time compilation speak of.
struct DeviceDescription {
  Device device;
  std::string architecture;  ///< "sm_90a", "gfx942", "x86-64"; "host" of an emulation
  std::string refusal;       ///< why nothing can run on it; empty where something can

  int multiprocessors = 1;                   ///< cores of a CPU
  double gigahertz = 1.0;                    ///< peak clock; GPUs alone, as what follows
  std::size_t shared_bytes = 48 << 10;       ///< most that a block may have
  double matrix_rate = 1.0;                  ///< multiply-adds of half precision of a multiprocessor in a cycle
  double memory_gigabytes_per_second = 1.0;  ///< the memory's own bandwidth

  // CPUs alone.
  int threads = 1;     ///< that a call may use
  bool intel = false;  ///< the vendor, and its family of processors as cpuid counts them
  int family = 0;
  /// An instruction set that can't be used, and why.
  struct Lack {
    std::string_view instruction_set;
    std::string reason;
  };
  std::vector<Lack> lacks;
};

}  // namespace tilewise::core
