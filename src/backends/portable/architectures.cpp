// The table of architectures, from the vendors' data sheets.
#include "backends/portable/architectures.hpp"

#include <algorithm>
#include <array>

#include "core/message.hpp"

namespace tilewise::backends::portable {
namespace {

// Shared memory a block may ask for: 1 KB less than a multiprocessor has on NVIDIA's. RDNA's multiprocessors are work
// group processors of two compute units, which is what HIP counts. Rates are those that mma.sync, MFMA and WMMA reach
// with sums in single precision. Where products differ in memory, the bandwidth is the fastest one's.
constexpr std::array<Architecture, 19> kArchitectures{{
    {"sm_80", device::kSm80, 108, 163 << 10, 1.41, 1024, 2039},   // A100
    {"sm_86", device::kSm80, 84, 99 << 10, 1.74, 512, 696},       // A40
    {"sm_87", device::kSm80, 16, 163 << 10, 1.3, 512, 205},       // Orin
    {"sm_89", device::kSm80, 142, 99 << 10, 2.52, 512, 864},      // L40S
    {"sm_90", device::kSm80, 132, 227 << 10, 1.98, 1024, 4800},   // H200, H100
    {"sm_90a", device::kSm80, 132, 227 << 10, 1.98, 1024, 4800},  // H200, H100
    {"sm_100", device::kSm80, 148, 227 << 10, 1.96, 1024, 8000},  // B200
    {"sm_103", device::kSm80, 148, 227 << 10, 1.96, 1024, 8000},  // B300
    {"sm_110", device::kSm80, 20, 227 << 10, 1.57, 1024, 273},    // Thor
    {"sm_120", device::kSm80, 170, 99 << 10, 2.41, 512, 1792},    // RTX 5090
    {"sm_121", device::kSm80, 48, 99 << 10, 2.42, 512, 273},      // GB10
    {"gfx90a", device::kCdna, 110, 64 << 10, 1.7, 512, 1638},     // MI250X, one of its two devices
    {"gfx942", device::kCdna, 304, 64 << 10, 2.1, 1024, 5300},    // MI300X
    {"gfx950", device::kCdna, 256, 160 << 10, 2.4, 2048, 8000},   // MI355X
    {"gfx1100", device::kRdna, 48, 64 << 10, 2.5, 512, 960},      // Radeon RX 7900 XTX
    {"gfx1101", device::kRdna, 30, 64 << 10, 2.43, 512, 624},     // Radeon RX 7800 XT
    {"gfx1102", device::kRdna, 16, 64 << 10, 2.63, 512, 288},     // Radeon RX 7600
    {"gfx1103", device::kRdna, 6, 64 << 10, 2.7, 512, 90},        // Radeon 780M
    {"gfx1151", device::kRdna, 20, 64 << 10, 2.9, 512, 256},      // Radeon 8060S
}};

/// What attention reaches of the matrix units' rate, and GB/s for each multiprocessor; roughly.
struct Sustained {
  double of_matrix_rate, gigabytes_per_second;
};
/// Indexed by device::Machine.
constexpr std::array<Sustained, 3> kSustained{{{0.66, 25.0}, {0.5, 12.0}, {0.5, 20.0}}};

}  // namespace

const Architecture* find_architecture(std::string_view name) {
  const auto* found = std::ranges::find(kArchitectures, name, &Architecture::name);
  return found == kArchitectures.end() ? nullptr : found;
}

const Architecture& named_architecture(std::string_view name) {
  if (const Architecture* found = find_architecture(name)) return *found;
  core::invalid_argument("target: must be one of ", architecture_names(DeviceType::cuda), ", ",
                         architecture_names(DeviceType::hip), " (got ", core::quoted(name), ")");
}

std::string architecture_names(DeviceType type) {
  std::string names;
  for (const Architecture& known : kArchitectures) {
    if (device_of(known) == type) core::append(names, core::concat(names.empty() ? "" : ", ", known.name));
  }
  return names;
}

DeviceType device_of(const Architecture& architecture) {
  return architecture.machine == device::kSm80 ? DeviceType::cuda : DeviceType::hip;
}

void set_rates(DeviceTraits& traits, double matrix_rate, double gigahertz, double memory_gigabytes_per_second) {
  const Sustained& sustained = kSustained[static_cast<std::size_t>(traits.machine)];
  traits.gflops = sustained.of_matrix_rate * 2.0 * matrix_rate * gigahertz * traits.multiprocessors;
  traits.gigabytes_per_second = sustained.gigabytes_per_second * traits.multiprocessors;
  traits.memory_gigabytes_per_second = memory_gigabytes_per_second;
}

DeviceTraits traits_of(const Architecture& architecture) {
  DeviceTraits traits;
  traits.machine = architecture.machine;
  traits.architecture = architecture.name;
  traits.multiprocessors = architecture.multiprocessors;
  traits.shared_bytes = architecture.shared_bytes;
  set_rates(traits, architecture.matrix_rate, architecture.gigahertz, architecture.memory_gigabytes_per_second);
  return traits;
}

}  // namespace tilewise::backends::portable
