// The table of architectures, from the vendors' data sheets.
#include "gpu/architectures.hpp"

#include <algorithm>
#include <array>
#include <vector>

#include "core/message.hpp"
#include "core/spelling.hpp"

namespace tilewise::gpu {
namespace {

// Shared memory a block may ask for: 1 KB less than a multiprocessor has on NVIDIA's. RDNA's multiprocessors are work
// group processors of two compute units, which is what HIP counts. Rates are those that mma.sync, MFMA and WMMA reach
// with sums in single precision. Where products differ in memory, the bandwidth is the fastest one's.
constexpr std::array<Architecture, 19> kArchitectures{{
    {"sm_80", Family::sm80, 108, 163 << 10, 1.41, 1024, 2039},   // A100
    {"sm_86", Family::sm80, 84, 99 << 10, 1.74, 512, 696},       // A40
    {"sm_87", Family::sm80, 16, 163 << 10, 1.3, 512, 205},       // Orin
    {"sm_89", Family::sm80, 142, 99 << 10, 2.52, 512, 864},      // L40S
    {"sm_90", Family::sm80, 132, 227 << 10, 1.98, 1024, 4800},   // H200, H100
    {"sm_90a", Family::sm80, 132, 227 << 10, 1.98, 1024, 4800},  // H200, H100
    {"sm_100", Family::sm80, 148, 227 << 10, 1.96, 1024, 8000},  // B200
    {"sm_103", Family::sm80, 148, 227 << 10, 1.96, 1024, 8000},  // B300
    {"sm_110", Family::sm80, 20, 227 << 10, 1.57, 1024, 273},    // Thor
    {"sm_120", Family::sm80, 170, 99 << 10, 2.41, 512, 1792},    // RTX 5090
    {"sm_121", Family::sm80, 48, 99 << 10, 2.42, 512, 273},      // GB10
    {"gfx90a", Family::cdna, 110, 64 << 10, 1.7, 512, 1638},     // MI250X, one of its two devices
    {"gfx942", Family::cdna, 304, 64 << 10, 2.1, 1024, 5300},    // MI300X
    {"gfx950", Family::cdna, 256, 160 << 10, 2.4, 2048, 8000},   // MI355X
    {"gfx1100", Family::rdna, 48, 64 << 10, 2.5, 512, 960},      // Radeon RX 7900 XTX
    {"gfx1101", Family::rdna, 30, 64 << 10, 2.43, 512, 624},     // Radeon RX 7800 XT
    {"gfx1102", Family::rdna, 16, 64 << 10, 2.63, 512, 288},     // Radeon RX 7600
    {"gfx1103", Family::rdna, 6, 64 << 10, 2.7, 512, 90},        // Radeon 780M
    {"gfx1151", Family::rdna, 20, 64 << 10, 2.9, 512, 256},      // Radeon 8060S
}};

}  // namespace

const Architecture* find_architecture(std::string_view name) {
  const auto* found = std::ranges::find(kArchitectures, name, &Architecture::name);
  return found == kArchitectures.end() ? nullptr : found;
}

const Architecture& named_architecture(std::string_view name) {
  if (const Architecture* found = find_architecture(name)) return *found;
  std::vector<std::string_view> names;
  for (const Architecture& known : kArchitectures) names.push_back(known.name);
  core::refuse_word("target", name, names);
}

std::string architecture_names(DeviceType type) {
  std::string names;
  for (const Architecture& known : kArchitectures) {
    if (device_of(known) == type) core::append(names, core::concat(names.empty() ? "" : ", ", known.name));
  }
  return names;
}

DeviceType device_of(const Architecture& architecture) { return traits_of(architecture.family).device; }

core::DeviceDescription describe(const Architecture& architecture) {
  core::DeviceDescription description;
  description.device.type = device_of(architecture);
  description.architecture = architecture.name;
  description.multiprocessors = architecture.multiprocessors;
  description.gigahertz = architecture.gigahertz;
  description.shared_bytes = architecture.shared_bytes;
  description.matrix_rate = architecture.matrix_rate;
  description.memory_gigabytes_per_second = architecture.memory_gigabytes_per_second;
  return description;
}

bool has_family(const core::DeviceDescription& device, Family family) {
  if (family == Family::sm90) return device.architecture == "sm_90a";
  if (const Architecture* known = find_architecture(device.architecture)) return known->family == family;
  return device.device.type == DeviceType::cuda && family == Family::sm80;
}

}  // namespace tilewise::gpu
