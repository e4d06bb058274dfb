// What `tilewise doctor` and the benchmarks say about the machine: processor, memory, GPUs on
// the PCI bus.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tilewise::tools {

/// The processor's own name, e.g. "AMD EPYC 9454 48-Core Processor"; "unknown" where it tells none.
[[nodiscard]] std::string processor_name();
/// Processors this process may run on.
[[nodiscard]] int allowed_processors();
/// Main memory in bytes; 0 where the system does not say.
[[nodiscard]] std::int64_t memory_bytes();

/// A display or compute device of NVIDIA or AMD on the PCI bus.
struct GpuDevice {
  std::string vendor;   ///< "NVIDIA" or "AMD"
  std::string address;  ///< e.g. "0000:19:00.0"
};
[[nodiscard]] std::vector<GpuDevice> gpu_devices();

}  // namespace tilewise::tools
