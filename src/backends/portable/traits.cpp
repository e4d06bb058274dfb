// What portable kernels sustain of a device's peak rates.
#include "backends/portable/traits.hpp"

#include <cstdlib>
#include <string_view>

namespace tilewise::backends::portable {
namespace {

/// What attention reaches of the matrix units' rate, and GB/s for each multiprocessor; roughly.
struct Sustained {
  double of_matrix_rate, gigabytes_per_second;
};

Sustained sustained(gpu::Family family) {
  switch (family) {
    case gpu::Family::sm80:
    case gpu::Family::sm90:
      return {0.66, 25.0};
    case gpu::Family::cdna:
      return {0.5, 12.0};
    case gpu::Family::rdna:
    case gpu::Family::rdna4:
      return {0.5, 20.0};
    case gpu::Family::gfx1250:
      return {0.5, 12.0};
  }
  return {0.5, 10.0};
}

/// Whether it is an NVIDIA GPU from sm_`first` on.
bool is_from(int first, std::string_view architecture) {
  constexpr std::string_view kPrefix = "sm_";
  return architecture.starts_with(kPrefix) &&
         std::atoi(std::string(architecture.substr(kPrefix.size())).c_str()) >= first;
}

}  // namespace

DeviceTraits traits_of(const core::DeviceDescription& device, gpu::Family family) {
  const Sustained rates = sustained(family);
  DeviceTraits traits;
  traits.family = family;
  traits.architecture = device.architecture;
  traits.multiprocessors = device.multiprocessors;
  traits.shared_bytes = device.shared_bytes;
  traits.gflops = rates.of_matrix_rate * 2.0 * device.matrix_rate * device.gigahertz * device.multiprocessors;
  traits.gigabytes_per_second = rates.gigabytes_per_second * device.multiprocessors;
  traits.overlaps_steps = is_from(90, device.architecture);
  const bool is_emulated = device.architecture == "host";
  traits.unpacks_e4m3 = (is_emulated && family == gpu::Family::sm80) || is_from(89, device.architecture);
  traits.copies_windows = (is_emulated && family == gpu::Family::cdna) || device.architecture == "gfx950";
  traits.multiplies_bytes = family == gpu::Family::cdna && device.architecture != "gfx90a";
  traits.scales_products = family == gpu::Family::cdna && (is_emulated || device.architecture == "gfx950");
  traits.memory_gigabytes_per_second = device.memory_gigabytes_per_second;
  return traits;
}

}  // namespace tilewise::backends::portable
