// A device as the schedules of portable kernels see it.
#pragma once

#include <cstddef>
#include <string>

#include "core/device_description.hpp"
#include "gpu/family.hpp"

namespace tilewise::backends::portable {

/// What a schedule may depend on of a device, and of the instructions that it is made for.
struct DeviceTraits {
  gpu::Family family = gpu::Family::sm80;
  std::string architecture;  ///< "sm_90a", "gfx942"; "host" for an emulation
  int multiprocessors = 1;
  std::size_t shared_bytes = 48 << 10;              ///< a block may have
  double gflops = 1.0, gigabytes_per_second = 1.0;  ///< sustained by these kernels, the latter out of caches too
  bool overlaps_steps = false;                      ///< programmatic dependent launch
  bool copies_windows = false;                      ///< straight to shared memory: the machine's copy_window()
  bool unpacks_e4m3 = false;                        ///< in one instruction: the machine's unpack_e4m3()
  bool multiplies_bytes = false;                    ///< of fp8: the machine's mma_bytes()
  bool scales_products = false;                     ///< by powers of two: the machine's mma_scaled()
  double memory_gigabytes_per_second = 1.0;         ///< the memory's own bandwidth, for the cost estimate
};

[[nodiscard]] DeviceTraits traits_of(const core::DeviceDescription& device, gpu::Family family);

}  // namespace tilewise::backends::portable
